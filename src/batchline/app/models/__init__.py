"""Model requests from Python: rows with a prompt (`batchline.run`), and the calls of an OpenAI client. The
reference is docs/reference/python.md.
"""
