// What the admin API answers, as far as the page reads it. The shapes are those of
// internal/observe/insight/types.go, nodes.go, preview.go and of internal/observe/recent.
declare namespace Api {
  interface Session { name: string; role: string; tokens: boolean }
  interface Nodes { asked: number; answered: number; remark?: string; apart?: Apart }
  interface Apart {
    broken?: { node: string; error: string }[]; differ?: { node: string; domain: string; rule: string; here: string; there: string }[];
    later?: { node: string; domain?: string; rule?: string; since: string }[];
  }
  interface Good { requests: number; plus_minus: number; of: number; clients: number; confidence?: string }
  interface Series { t: number[]; admitted: number[]; near: number[]; refused: number[]; shadow?: number[]; banned?: number[] }
  interface RuleChange { domain: string; rule?: string; change: string; fields?: { field: string; before: string; after: string }[] }
  interface RuleChanges { changes?: RuleChange[]; more_changes?: number }
  interface Happening extends RuleChanges { t: number; until?: number; kind: string; version?: string; signal?: string; nodes?: string[] }
  interface Mention { text: string; kind: string; domain?: string; name?: string }
  interface Overview {
    from: string; to: string; step: number; nodes: Nodes; domain?: string;
    requests: number; refused: number; banned: number; sampled_from: string; clients: number; clients_refused: number; good_refused: Good;
    near: number; per_second: number; p99: number; store_errors: number; unknown_domain?: { requests: number; name: string }; before: { requests: number; refused: number } | null;
    series: Series; events: Happening[] | null; needs_a_look: Verdict[] | null; sentences: string[] | null; mentions?: Mention[];
  }
  interface Verdict {
    verdict: string; confidence: string; domain: string; rule: string; since: string; sentence: string;
    proposal?: { sentence: string; patch?: string }; evidence: Record<string, number> | null; examples: string[] | null;
  }
  interface Episodes { obeyed: number; early: number; gave_up: number; left_out?: number }
  interface Rule {
    domain: string; name: string; file: string; line: number; since: string; mode: string; command?: boolean; trial?: Candidate; limits: string[]; per?: string[];
    from: string; sampled_from: string; met: number; refused: number; refused_alone: number; soft: number; near: number; banned: number;
    would_refuse: number; errors: number; keys: number; keys_refused: number; keys_error: number; fill: number[]; max_fill: number;
    episodes: Episodes; known_share: number; ok_share: number;
    good: { refused: number; refused_plus_minus: number; of: number; keys: number; all: number; share: number; low: number; high: number; plus_minus: number; confidence?: string };
    trend: number[] | null; per_second: number; verdicts: Verdict[] | null;
    curve?: { limit: number; keys: number; plus_minus: number; good_keys?: number }[];
    curve_of?: string;
    series?: Series; windows?: { name: string; allows: string; limit: number; window: number; refused: number; max_fill: number }[];
    by?: Record<string, { value: string; count: number }[]>; top?: Key[]; near_now?: Key[];
  }
  interface Rules { nodes: Nodes; total: number; rules: Rule[] }
  interface Key {
    domain: string; rule: string; limit: string; key: string; count: number; over: number; refused_share: number; fill: number;
    banned_until?: string | null; banned_by?: { limit: string; key: string[]; wide?: boolean }; granted_until?: string | null; known: boolean; obey: number; shadow?: boolean; estimated?: boolean;
  }
  interface FoundKey {
    domain: string; key: string; counter: boolean; refused: number; banned?: number; at_least?: boolean; by?: { value: string; count: number }[];
    allowed?: number; refused_at?: string; seen_at: string;
  }
  interface FoundList { nodes: Nodes; since: string; found: FoundKey[]; decisions: { decision: string; time: string; domain: string; outcome: string; key?: string }[]; left_out?: number }
  interface KeyReport {
    domain: string; key: string; known: boolean; obey: number; episodes: Episodes; sampled: boolean;
    limits: { rule: string; limit: string; asked: number; refused: number; near: number; fill: number; would_refuse?: number }[] | null;
  }
  interface KeyState {
    domain: string; limit: string; key: string; parts: string[]; used: number; capacity: number; remaining: number; refused: boolean;
    retry_after: number | null; reset_after: number | null; shadow?: boolean; unlimited?: boolean; ban?: Ban; grant?: Grant;
    leased?: { units: number; generations: number; until: string };
    regions?: { region: string; own?: { used: number; limit: number }; all?: { used: number; limit: number } };
  }
  interface Ban { domain: string; limit: string; key: string[] | null; wide?: boolean; since: string; until: string; reason: string; set?: boolean; left: number; refused?: number; refused_at_least?: boolean }
  interface Grant { domain: string; limit: string; key: string[] | null; allow: string; since: string; until: string; reason: string; problem?: string; left: number }
  interface GrantChange { grant?: Grant; replaced?: Grant; before?: string; without?: string; shadow?: boolean; ban?: Ban; shared?: boolean; warning?: string }
  interface Limit {
    name: string; rule: string; file?: string; line?: number; key: string; mode: string; allowed: boolean; refuses: boolean;
    near_limit: boolean; soft_exceeded: boolean; algorithm: string; allows: string; limit: number; asked: number; remaining: number;
    retry_after: number | null; reset_after: number | null;
  }
  interface Decision {
    decision: string; time: string; domain: string; door?: string; node?: string; allowed: boolean; banned?: boolean; outcome: string;
    marks: string[] | null; hits: number; retry_after: number | null; delay: number; generation: number;
    attributes: Record<string, string> | null; limits: Limit[] | null; limits_left_out?: number;
  }
  interface Decisions { decisions: Decision[]; nodes?: Nodes }
  interface Node {
    node: string; address?: string; self?: boolean; version: string; started: string; rules: number; generation: number; digest: string;
    rules_version?: string; rules_since: string; rules_broken: boolean; per_second: number; refused_share: number; p99: number; store: string;
    breaker: string; store_fault?: string; store_remark?: string; store_errors: number; taken: number; thinned: number; memory: number;
  }
  interface Outage {
    store: string; region?: string; kind: string; from: string; to: string | null; times: number; cause?: string; parts_away?: number; parts?: number;
    alone: number; share_admitted: number; share_refused: number; admitted: number; refused: number; over: number; unsettled: number; unsure: number;
    counters_lost?: boolean; title: string; summary: string; nodes: { node: string; alone: number; does: string }[];
  }
  interface NetUnits { units: number; back: number }
  interface Region {
    region: string; own?: boolean; weight: number; share: number; state: string; staleness: number | null; weights_differ: boolean; rules_differ: boolean;
    uses: number; unknown: number; gaps: number; errors: number; asked: number; borrowed: number; lost: number;
  }
  interface RegionalUnits { used: NetUnits; told: NetUnits; heard: NetUnits; late: NetUnits; over_units: number; borrowed: number; ceiling_refusals: number }
  interface RegionalWindow { name: string; limit: number; burst?: number; window: number; unlimited?: boolean; ceiling: number; ceiling_burst?: number; counted?: RegionalUnits }
  interface RegionalLimit extends RegionalUnits {
    domain: string; rule: string; over_percent: number; sync?: boolean; tell_percent: number; shadow?: boolean; limits: RegionalWindow[]; overrides?: number;
  }
  interface Regions {
    nodes: Nodes; region: string; leader?: string; untold: number; orders: number; keys: number; regions: Region[]; limits: RegionalLimit[]; each_by_itself: string[];
  }
  interface Side { refused: number; share: number; plus_minus: number; clients_refused: number }
  interface Preview {
    from: string; to: string; requests: number; sampled: number; nodes: Nodes; now: Side; then: Side; only_now: number; only_then: number;
    clients: { more: number; fewer: number; good_more: number; examples: { key: string; now: number; then: number; good: boolean }[] | null };
    rules: { domain: string; rule: string; now: number; then: number; met_now: number; met_then: number; change: string; estimate: boolean }[] | null;
    series?: { t: number[]; step: number; all: number[]; now: number[]; then: number[] };
    tests: { passed: number; failed: number; failures: string[] | null };
    problems: { file: string; line: number; column: number; message: string }[] | null; warnings: string[] | null;
  }
  interface RulesInForce {
    generation: number; domains: string[] | null;
    source?: { path: string; version?: string; files: string[]; loaded: string; loads: number; failures: number; errors: string[] };
    rules: { domain: string; name: string; shadow?: boolean; per?: string[]; limits: { name: string }[] }[];
  }
  interface Source { files: Record<string, string>; version?: string; digest: string }
  interface Candidate { enforce_percent: number; since: string; would_refuse: number; would_admit: number; both_refuse: number; both_admit: number; share_would_refuse: number; keys_would_refuse: number; enforced_admitted: number; enforced_refused: number; enforced_keys_refused: number }
  interface Rollout extends RuleChanges { version?: string; file: string; line: number; before: string; after: string; diff: string }
  interface VersionDiff extends RuleChanges { from: number; to: number; broken?: string; diff: string; cut?: boolean }
  interface VersionList { space: string; head: number; versions: { number: number; parent?: number; author: string; note?: string; origin: string; made: string }[] }
  interface Pushed { version: number; shadowed?: string[]; in_force?: string[] }
  interface AuditLine { time: string; who: string; role?: string; address?: string; what: string; before?: unknown; after?: unknown; note?: string; node?: string; domain?: string; limit?: string; key?: string }
}
