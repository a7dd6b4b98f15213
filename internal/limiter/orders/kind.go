package orders

import (
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// factVersion is the version of the form of factData.
const factVersion = 1

// clockSkew is how far the clocks of two nodes may differ, in µs, before their copies of one order
// count as different.
const clockSkew = int64(time.Second / time.Microsecond)

// order is a *BanOrder or a *GrantOrder. It is immutable once it is in force.
type order interface {
	comparable
	head() head
	// encode fills in the fields that only this kind has, of an order that ends at until.
	encode(d *factData, until int64)
	// says reports whether the order and a fact agree, the instants left aside.
	says(d *factData) bool
}

// kind is what bans and grants have in common: the orders in force, and how they become facts on
// the board and facts become orders.
type kind[O order] struct {
	name   string // on the board
	orders *Orders
	table  table[O]
	ended  ended

	// put puts an order in force on this node, drop ends one; ok is false if there is none.
	put  func(group uint64, key []byte, until int64, o O)
	drop func(group uint64, key []byte, now int64) (o O, ok bool)
	// decode makes an order that ends at until from a fact.
	decode func(h head, key []byte, d *factData, until int64) O
}

func (k *kind[O]) init(name string, orders *Orders, most int) {
	k.name, k.orders = name, orders
	k.table.init(most)
}

// factData is the content of a fact about an order, as JSON. An instant is sent as the time that is
// left, by the TTL of the fact, since the clocks of the nodes differ.
type factData struct {
	V        int      `json:"v"`
	Domain   string   `json:"domain"`
	Rule     string   `json:"limit"`
	Key      []string `json:"key"`
	Reason   string   `json:"reason,omitempty"`
	Wide     bool     `json:"wide,omitempty"`
	Manual   bool     `json:"set,omitempty"`
	NFTables bool     `json:"nftables,omitempty"`
	Allow    string   `json:"allow,omitempty"`
	// Beyond is how long, in µs, the limit itself goes on refusing after the ban has ended.
	Beyond int64 `json:"beyond,omitempty"`
	// Bits is how many bits a banned network has, which is the last byte of its key too; 0 if the
	// key is one that requests have.
	Bits uint8 `json:"bits,omitempty"`
	// At is when the order was made, in µs since the Unix epoch, by the clock of the node that
	// made it: of several regions' orders on one key the last one holds (store/regions).
	At int64 `json:"at,omitempty"`
	// Before is how long, in µs, the order had been in force when it came on this board: one of
	// another region is taken over later than it was made (store/regions).
	Before int64 `json:"before,omitempty"`
}

// head is what all kinds of orders say.
type head struct {
	domain, rule string
	key          []string
	since, until time.Time
	reason       string
	// made is when the order was made, by the clock of the node that made it, in µs since the Unix
	// epoch; 0 if that is since. A board of another region that has it on behalf of that node has
	// had it for less long.
	made int64
}

// madeAt returns when an order was made, as its facts say it.
func (h *head) madeAt() int64 {
	if h.made != 0 {
		return h.made
	}
	return h.since.UnixMicro()
}

// factID names a key of a rule.
func factID(group uint64, key []byte) string {
	return string(append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key)), group), key...))
}

func cutFactID(id string) (group uint64, key []byte, ok bool) {
	if len(id) < 8 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64([]byte(id[:8])), []byte(id[8:]), true
}

// end ends an order on this node; ok is false if there is none.
func (k *kind[O]) end(t target) (o O, ok bool) {
	now := k.orders.Now()
	if o, ok = k.drop(t.group, t.key, now); ok {
		k.ended.note(factID(t.group, t.key), now, now)
	}
	return o, ok
}

func (k *kind[O]) kindName() string { return k.name }

func (k *kind[O]) factName(group uint64, key []byte) factName {
	return factName{k.name, factID(group, key)}
}

// fact implements shared.
func (k *kind[O]) fact(id string) (f store.Fact, ok bool) {
	group, key, ok := cutFactID(id)
	if !ok {
		return f, false
	}
	now := k.orders.Now()
	o, until, ok := k.table.find(group, key, now)
	if !ok {
		return f, false
	}
	h := o.head()
	data := factData{V: factVersion, Domain: h.domain, Rule: h.rule, Key: h.key, Reason: h.reason, At: h.madeAt()}
	if before := now - h.since.UnixMicro(); before > clockSkew { // it was read from a board that is lost
		data.Before = before
	}
	o.encode(&data, until)
	text, err := json.Marshal(data)
	if err == nil && len(text) > store.MaxFactData {
		data.Key, data.Reason = nil, "" // these are for people; the ID names the key
		text, err = json.Marshal(data)
	}
	if err != nil || len(text) > store.MaxFactData || len(id) > store.MaxFactID {
		return f, false
	}
	left := min(until-now, algo.MaxWindow.Microseconds())
	return store.Fact{ID: id, Data: text, TTL: time.Duration(left) * time.Microsecond}, true
}

// decoded is a fact that was understood.
type decoded struct {
	group        uint64
	key          []byte
	since, until int64 // by this node's clock
	data         factData
}

func decode(f *store.Fact, now int64) (d decoded, ok bool) {
	if d.group, d.key, ok = cutFactID(f.ID); !ok {
		return d, false
	}
	d.since, d.until = now-f.Age.Microseconds(), now+f.TTL.Microseconds()
	if f.Removed {
		return d, true
	}
	ok = json.Unmarshal(f.Data, &d.data) == nil && d.data.V == factVersion && d.until > now
	d.since -= min(max(d.data.Before, 0), algo.MaxWindow.Microseconds())
	d.data.Reason = clipText(d.data.Reason, maxReason)
	return d, ok
}

// learn implements shared.
func (k *kind[O]) learn(facts []store.Fact, all bool) {
	now := k.orders.Now()
	s := &k.orders.sharing
	onBoard := map[string]bool{}
	for i := range facts {
		f := &facts[i]
		d, ok := decode(f, now)
		if !ok {
			continue
		}
		onBoard[f.ID] = true
		name := factName{k.name, f.ID}
		have, until, held := k.table.find(d.group, d.key, now)
		if held {
			since := have.head().since.UnixMicro()
			if s.isPending(name) && since > d.since || f.Removed && since > d.since+clockSkew {
				continue // this node's order is newer, and will be published
			}
		}
		if f.Removed {
			k.ended.note(f.ID, d.since, now)
		}
		switch {
		case f.Removed && held:
			s.withdraw(name)
			k.drop(d.group, d.key, now)
		case f.Removed:
		case !held && k.ended.since(f.ID, d.data.At, now):
			s.enqueue(name) // its node did not know of the end, which is published once more
		case held && max(until-d.until, d.until-until) < clockSkew && have.head().reason == d.data.Reason &&
			have.says(&d.data):
		default:
			h := head{
				domain: d.data.Domain, rule: d.data.Rule, key: d.data.Key, reason: d.data.Reason,
				since: time.UnixMicro(d.since), until: time.UnixMicro(d.until), made: d.data.At,
			}
			k.put(d.group, d.key, d.until, k.decode(h, d.key, &d.data, d.until))
		}
	}
	if !all {
		return
	}
	s.hasRead(k.name)
	k.table.each(now, func(group uint64, key []byte, _ int64, _ O) {
		if name := k.factName(group, key); !onBoard[name.id] {
			s.enqueue(name)
		}
	})
}
