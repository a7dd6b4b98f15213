-- What the two roles may do: nodes read and report, editors also push. Nobody but the owner may
-- write into the tables of versions and of the audit.
grant usage on schema weir_rules to weir_node, weir_editor;
grant select on all tables in schema weir_rules to weir_node, weir_editor;
grant insert, update, delete on weir_rules.node to weir_node;
grant execute on function
  weir_rules.push(text, bigint, jsonb, bytea, text, text, text, text),
  weir_rules.prune(text, bigint, text, text) to weir_editor;
