-- forget_adoption: delete the mapping from old rows to new ones, when there is no way back any more. Truncates, so it takes
-- the strongest lock, on tables that only adopt uses.
TRUNCATE batchline.adopted_files, batchline.adopted_file_lanes, batchline.adopted_lines, batchline.adopted_batches,
    batchline.adopted_lanes
