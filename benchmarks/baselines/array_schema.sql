-- array_schema: the array design (docs/why-not-the-array.md). Each template lists the batches in which it is
-- active, and a request is inserted when it is claimed.
--
-- As published it claims finished lines again forever; one condition in the claim fixes that. Ids and
-- indexes are those of the schema that the proposal set out to change (github.com/doublewordai/fusillade,
-- migrations 20250106000000 and 20250107000003) as far as they concern these columns, and the proposal's own.
CREATE TABLE request_templates (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    file_id            uuid NOT NULL,
    line_number        integer NOT NULL,
    custom_id          text NOT NULL,
    model              text NOT NULL,
    body               text NOT NULL,
    batches_active_in  uuid[] NOT NULL DEFAULT '{}'
);
CREATE INDEX request_templates_file ON request_templates (file_id);
CREATE INDEX request_templates_file_line ON request_templates (file_id, line_number);

CREATE TABLE batches (
    id             uuid PRIMARY KEY,
    file_id        uuid NOT NULL,
    expires_at     timestamptz,
    cancelling_at  timestamptz
);
CREATE INDEX batches_file ON batches (file_id);

CREATE TABLE requests (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    batch_id       uuid NOT NULL,
    template_id    uuid NOT NULL,
    state          text NOT NULL,
    model          text NOT NULL,
    daemon_id      uuid,
    claimed_at     timestamptz,
    completed_at   timestamptz,
    response_body  text
);
CREATE INDEX requests_batch ON requests (batch_id);
CREATE INDEX requests_template ON requests (template_id);
CREATE INDEX requests_state ON requests (state);
CREATE INDEX requests_model ON requests (model);
CREATE INDEX requests_daemon ON requests (daemon_id) WHERE daemon_id IS NOT NULL;

CREATE TABLE retry_attempts (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    template_id  uuid REFERENCES request_templates (id) ON DELETE SET NULL,
    batch_id     uuid REFERENCES batches (id) ON DELETE SET NULL,
    attempt      integer NOT NULL,
    error_code   text,
    not_before   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX retry_attempts_latest ON retry_attempts (template_id, batch_id, attempt DESC);
