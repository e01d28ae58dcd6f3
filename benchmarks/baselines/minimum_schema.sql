-- minimum_schema: the lines, and a table for their results. No state, no batch.
CREATE TABLE request_templates (
    file_id      uuid NOT NULL,
    line_number  integer PRIMARY KEY,
    custom_id    text NOT NULL,
    model        text NOT NULL,
    body         text NOT NULL
);

CREATE TABLE results (
    line_number  integer PRIMARY KEY,
    output       text NOT NULL
);
