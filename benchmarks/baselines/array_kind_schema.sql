-- array_kind_schema: the array design (docs/why-not-the-array.md) with the most favourable fix that we found,
-- and everything that helps it.
--
-- Completion moves the batch into a second array, `batches_done_in`, so that the claim does not read requests at
-- all. Ids grow with time. One index serves the claim's WHERE and ORDER BY.
CREATE TABLE request_templates (
    id                 uuid PRIMARY KEY DEFAULT uuidv7(),
    file_id            uuid NOT NULL,
    line_number        integer NOT NULL,
    custom_id          text NOT NULL,
    model              text NOT NULL,
    body               text NOT NULL,
    batches_active_in  uuid[] NOT NULL DEFAULT '{}',
    batches_done_in    uuid[] NOT NULL DEFAULT '{}'
);
CREATE INDEX request_templates_file ON request_templates (file_id, model, line_number);

CREATE TABLE batches (
    id             uuid PRIMARY KEY,
    file_id        uuid NOT NULL,
    expires_at     timestamptz,
    cancelling_at  timestamptz
);
CREATE INDEX batches_file ON batches (file_id);

CREATE TABLE requests (
    id             uuid PRIMARY KEY DEFAULT uuidv7(),
    batch_id       uuid NOT NULL,
    template_id    uuid NOT NULL,
    state          text NOT NULL,
    model          text NOT NULL,
    daemon_id      uuid,
    claimed_at     timestamptz,
    completed_at   timestamptz,
    response_body  text
);
CREATE INDEX requests_batch ON requests (batch_id, template_id);

CREATE TABLE retry_attempts (
    id           uuid PRIMARY KEY DEFAULT uuidv7(),
    template_id  uuid REFERENCES request_templates (id) ON DELETE SET NULL,
    batch_id     uuid REFERENCES batches (id) ON DELETE SET NULL,
    attempt      integer NOT NULL,
    error_code   text,
    not_before   timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX retry_attempts_latest ON retry_attempts (template_id, batch_id, attempt DESC);
