-- A database with one row per request: the tables of the document, before its change.
CREATE TABLE files (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE request_templates (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    file_id uuid NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    custom_id text,
    line_number integer NOT NULL DEFAULT 0,
    method text NOT NULL,
    path text NOT NULL,
    body text NOT NULL DEFAULT '',
    model text NOT NULL
);
CREATE INDEX ON request_templates (file_id, line_number);
CREATE TABLE batches (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    file_id uuid NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    endpoint text NOT NULL DEFAULT '/v1/chat/completions',
    completion_window text NOT NULL DEFAULT '24h',
    metadata jsonb,
    created_by text,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    cancelling_at timestamptz
);
CREATE TABLE requests (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    batch_id uuid NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    template_id uuid NOT NULL REFERENCES request_templates (id) ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'pending',
    custom_id text,
    model text NOT NULL,
    retry_attempt integer NOT NULL DEFAULT 0,
    not_before timestamptz,
    daemon_id uuid,
    claimed_at timestamptz,
    started_at timestamptz,
    response_status smallint,
    response_body text,
    completed_at timestamptz,
    error text,
    failed_at timestamptz,
    canceled_at timestamptz
);
CREATE INDEX ON requests (batch_id, state);
