-- release_items: let a batch accept no more items, and run. See functions/release_items_v1.sql.
SELECT batchline.release_items_v1(%(batch)s) AS released
