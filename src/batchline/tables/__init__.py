"""Output tables: rows of chosen columns made from output lines, in JSON Lines, CSV or Parquet.

Everything streams: lines come in blocks, and a file goes out in blocks. Imports nothing else of Batchline.
Start with `table`.
"""
