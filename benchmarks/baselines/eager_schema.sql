-- eager_schema: one row per item, from the start, with everything that helps this design: ids that grow with time,
-- and an index of the pending rows only, in the order of claims.
CREATE TABLE request_templates (
    id           uuid PRIMARY KEY DEFAULT uuidv7(),
    file_id      uuid NOT NULL,
    line_number  integer NOT NULL,
    custom_id    text NOT NULL,
    model        text NOT NULL,
    body         text NOT NULL
);
CREATE INDEX request_templates_file ON request_templates (file_id, line_number);

CREATE TABLE batches (
    id             uuid PRIMARY KEY,
    file_id        uuid NOT NULL,
    expires_at     timestamptz,
    cancelling_at  timestamptz
);

CREATE TABLE requests (
    id             uuid PRIMARY KEY DEFAULT uuidv7(),
    batch_id       uuid NOT NULL,
    template_id    uuid NOT NULL,
    state          text NOT NULL,
    custom_id      text NOT NULL,
    retry_attempt  integer NOT NULL,
    model          text NOT NULL,
    not_before     timestamptz,
    daemon_id      uuid,
    claimed_at     timestamptz,
    completed_at   timestamptz,
    response_body  text
);
CREATE INDEX requests_pending ON requests (model, batch_id, template_id) WHERE state = 'pending';
-- For status and output, which read one batch.
CREATE INDEX requests_batch ON requests (batch_id);
