-- append_items: add items to a batch that accepts them. See functions/append_items_v1.sql.
SELECT batchline.append_items_v1(%(batch)s, %(url)s, %(custom_ids)b, %(bodies)b, %(bytes)s) AS first
