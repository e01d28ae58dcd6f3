-- drop_browser_session: sign a browser out. Locks: the session's row.
DELETE FROM batchline.browser_sessions WHERE hash = %(hash)s
