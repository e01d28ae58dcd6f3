-- settle: take the verdicts of one worker. See functions/settle_v1.sql.
SELECT * FROM batchline.settle_v1(
    %(worker)s,
    %(spans)b,
    %(kinds)b,
    %(status_codes)b,
    %(delays)b,
    %(ordinals)b,
    %(sizes)b,
    %(input_tokens)b,
    %(cached_tokens)b,
    %(output_tokens)b,
    %(reasoning_tokens)b,
    %(ended_groups)b,
    %(ended_line_nos)b,
    %(ended_ordinals)b,
    %(ended_input_tokens)b,
    %(ended_output_tokens)b,
    %(outputs)b,
    %(retried_groups)b,
    %(retried_ordinals)b,
    %(error_codes)b,
    %(messages)b
)
