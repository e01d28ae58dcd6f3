"""What the dashboard shows: batches, items, rates, upstreams and workers, for one tenant, read from the
store.

Start with `overview.py` and `batch_page.py`. `live.py` reads for all browsers at once. The pages are in
`static/`. It imports executors and everything below them. The routes are in `api/dashboard/`.
"""
