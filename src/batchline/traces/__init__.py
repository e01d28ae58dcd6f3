"""Traces of lines and batches, with OpenTelemetry's conventions. Imports `config`, `model` and `secrets`.

A line has a trace of its own. Its ids follow from the batch and the line's number, so any worker that works
on the line adds to the same trace, and nothing is stored per line. A trace begins when the batch was
submitted, and links to the trace of the submitter, which is stored with the batch.

Start with `lines`. `otlp` sends the spans, and is the only module that needs the extra `batchline[otel]`.
"""
