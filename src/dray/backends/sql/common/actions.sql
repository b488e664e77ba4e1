-- name: action_add
-- Notes what a person did, or adds up: the parts of one action share a row.
INSERT INTO dray_actions (id, at, who, via, verb, kind, target, note, done, refused)
VALUES (:id, $now, :who, :via, :verb, :kind, :target, :note, :done, :refused)
ON CONFLICT (id) DO UPDATE SET
    done = dray_actions.done + excluded.done, refused = dray_actions.refused + excluded.refused

-- name: action_end
-- Says how an action ended, unless that has been said. The action itself, or a person who stops it, says so.
UPDATE dray_actions SET note = :note WHERE id = :id AND note IS NULL

-- name: action_list
-- The newest actions before an id, of one kind or of all.
SELECT id, at, who, via, verb, kind, target, note, done, refused FROM dray_actions
WHERE id < :before AND (CAST(:kind AS text) IS NULL OR kind = :kind) ORDER BY id DESC LIMIT :limit

-- name: action_list_of
-- The newest actions before an id that were about one thing.
SELECT id, at, who, via, verb, kind, target, note, done, refused FROM dray_actions
WHERE kind = :kind AND target = :target AND id < :before ORDER BY id DESC LIMIT :limit

-- name: action_get
-- One action.
SELECT id, at, who, via, verb, kind, target, note, done, refused FROM dray_actions WHERE id = :id

-- name: action_prune
-- Removes those of the oldest actions that are from before an instant. Ids go by time: no more rows are read than may
-- go.
DELETE FROM dray_actions WHERE id IN (
    SELECT oldest.id FROM (SELECT id, at FROM dray_actions ORDER BY id LIMIT :limit) AS oldest
    WHERE oldest.at < $at(before)
)
