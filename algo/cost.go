package algo

// ClampCost keeps a cost within ±MaxCost, which is above every capacity.
func ClampCost(n int64) int64 { return min(max(n, -MaxCost), MaxCost) }

// Cost returns hits × each within ±MaxCost; each below 0 counts as 0.
func Cost(hits, each int64) int64 {
	return ClampCost(ClampCost(hits) * ClampCost(max(each, 0)))
}
