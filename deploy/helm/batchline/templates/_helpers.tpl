{{- /* The names of objects begin with the release's, cut so that a suffix fits into 63 characters. */ -}}
{{- define "batchline.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The labels that selectors use. They must not change. */ -}}
{{- define "batchline.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "batchline.labels" -}}
{{ include "batchline.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "batchline.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "batchline.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "batchline.name" . -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- /* One key of the database's Secret as a variable: (list . "VARIABLE" "key"). */ -}}
{{- define "batchline.databaseVariable" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret: name a Secret with the database's URL" $root.Values.database.existingSecret }}
      key: {{ index . 2 }}
{{- end -}}

{{- define "batchline.env" -}}
{{ include "batchline.databaseVariable" (list . "BATCHLINE_DATABASE_URL" .Values.database.urlKey) }}
{{- with .Values.database.directUrlKey }}
{{ include "batchline.databaseVariable" (list $ "BATCHLINE_LISTEN_URL" .) }}
{{- end }}
- name: BATCHLINE_CONFIG
  value: /etc/batchline/batchline.toml
- name: BATCHLINE_OBJECTS
  value: {{ required "objects.url: say where files are kept, such as s3://bucket/prefix" .Values.objects.url | quote }}
{{- range $name, $value := .Values.objects.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* Secrets whose keys are variables. The server needs the keys of upstreams to list their models. */ -}}
{{- define "batchline.envFrom" -}}
{{- with compact (list .Values.objects.existingSecret .Values.upstreams.existingSecret) -}}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- /* What pods of the server and of workers have in common. */ -}}
{{- define "batchline.pod" -}}
serviceAccountName: {{ include "batchline.serviceAccount" . }}
{{ include "batchline.confined" . }}
volumes:
  - name: config
    configMap:
      name: {{ include "batchline.name" . }}
  - name: data
    emptyDir: {}
  - name: tmp
    emptyDir: {}
{{- end -}}

{{- /* Not root, no access to the Kubernetes API, and no variables of Services, which begin with BATCHLINE_, too. */ -}}
{{- define "batchline.confined" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "batchline.container" -}}
image: {{ include "batchline.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "batchline.mounts" -}}
volumeMounts:
  - name: config
    mountPath: /etc/batchline
    readOnly: true
  - name: data
    mountPath: /var/lib/batchline
  - name: tmp
    mountPath: /tmp
{{- end -}}

{{- define "batchline.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
