package doors

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// spelling is a request for the resource of one kind of credential, with ada's credential in it, or
// something that a server may take for it.
type spelling struct {
	target string
	lines  []string // of the header
}

// spelled are the requests that the test of spellings sends: for each kind a canonical one, and
// others. They are always the same ones, by a seed.
type spelled struct {
	canonical spelling
	others    []spelling
}

const (
	adasKey  = "k-ada"
	adasCode = "YWRhOnMzY3JldA==" // ada:s3cret
	seed     = 31
)

// kindsOfCredentials are the resources, in order.
var kindsOfCredentials = []string{"basic", "jwt", "bearer", "authorization", "header", "query", "cookie", "session",
	"signed-header", "signed-query"}

// fieldSpellings makes the spellings of all kinds: some more of the combinations than random. token
// is a JSON Web Token, and session a signed one of the server's kind.
func fieldSpellings(token, session string, random int) map[string]spelled {
	return map[string]spelled{
		"session":       signedSpellings(session, func(s string) spelling { return spelling{"/session", []string{"Cookie: sess=" + s}} }),
		"signed-header": signedSpellings(token, func(s string) spelling { return spelling{"/signed-header", []string{"X-Token: " + s}} }),
		"signed-query":  signedSpellings(token, func(s string) spelling { return spelling{"/signed-query?token=" + s, nil} }),
		"basic":         authorizations("/basic", "Basic", adasCode, basicCodes(), random),
		"jwt":           authorizations("/jwt", "Bearer", token, tokens(token), random),
		"bearer":        authorizations("/bearer", "Bearer", adasKey, append([]string{adasKey, adasKey + "=", "=" + adasKey, adasKey + "~", adasKey + ","}, railsTokens()...), random),
		"authorization": authorizations("/authorization", "Bearer", adasKey, append([]string{adasKey, adasKey + " ", adasKey + "\t", adasKey + "="}, railsTokens()...), random),
		"header":        headerSpellings(),
		"query":         querySpellings(),
		"cookie":        cookieSpellings(),
	}
}

// railsTokens are spellings that Rails takes for a token.
func railsTokens() []string {
	return []string{"token=" + adasKey, `token="` + adasKey + `"`, "token=" + adasKey + ",a=b",
		"token=" + adasKey + ";a=b", "token=" + adasKey + "\ta=b", `TOKEN="` + adasKey + `"`,
		adasKey + ";a=b", adasKey + ";", ";" + adasKey, adasKey + "\ta=b"}
}

// basicCodes are spellings of base64 that some decoder takes.
func basicCodes() []string {
	bare := strings.TrimRight(adasCode, "=")
	codes := []string{adasCode, bare, bare + "=", bare + "===", bare + "=x", bare + "==x", adasCode + "junk",
		bare[:len(bare)-1] + "B==", bare[:len(bare)-1] + "P"}
	for _, c := range []string{" ", "\t", "!", "-", "_", ".", "~", "=", "\"", ",", "\xa0"} {
		codes = append(codes, adasCode+c, c+adasCode, bare[:4]+c+adasCode[4:], bare[:7]+c+adasCode[7:], adasCode+c+"x")
	}
	for _, user := range []string{"ada\x00x", "ada\x00", "ada\n", "\x00ada"} {
		codes = append(codes, base64.StdEncoding.EncodeToString([]byte(user+":s3cret")))
	}
	return codes
}

// tokens are spellings of a JSON Web Token that some decoder takes.
func tokens(token string) []string {
	dot := strings.IndexByte(token, '.')
	all := []string{token, token + "=", token + "==", token + "===", token[:dot] + "=" + token[dot:]}
	for _, c := range []string{"~", "+", "/", "!", "*", " ", "\t", ",", ";", "\"", "%3D", "\xa0", "."} {
		all = append(all, token+c, c+token, token[:len(token)-5]+c+token[len(token)-5:], token+c+"x")
	}
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(digits, token[len(token)-1])
	for spare := 1; spare < 4; spare++ { // 256 bits leave two of the last digit
		all = append(all, token[:len(token)-1]+string(digits[last&^3|spare]))
	}
	return append(all, strings.NewReplacer("-", "+", "_", "/").Replace(token))
}

// signedSpellings spell a signed token, in requests that the function of makes.
func signedSpellings(token string, of func(string) spelling) spelled {
	s := spelled{canonical: of(token)}
	for _, other := range tokens(token) {
		s.others = append(s.others, of(other))
	}
	dot := strings.LastIndexByte(token, '.') + 1
	signature := token[dot:]
	for _, c := range []string{"~", "%7E", "%0A", "%20", "%09", "\xa0", "=", "!", "%00", ":", "|", "%2B", "%5C", "'",
		"@"} {
		for _, i := range []int{0, 1, 4, 7, 15, 16, 20, len(signature)} {
			s.others = append(s.others, of(token[:dot]+signature[:i]+c+signature[i:]))
		}
		s.others = append(s.others, of(token[:2]+c+token[2:]), of(token[:dot-1]+c+token[dot-1:]), of(token+"="+c+"x"))
	}
	for i := range signature { // each byte escaped
		s.others = append(s.others, of(token[:dot+i]+fmt.Sprintf("%%%02X", signature[i])+signature[i+1:]))
	}
	swapped := strings.NewReplacer("-", "+", "_", "/", "+", "-", "/", "_").Replace(signature)
	for _, sig := range []string{swapped, strings.ReplaceAll(swapped, "+", "%2B"), signature + "A", signature + "AAAA",
		signature + "=A", signature + "==A",
		strings.ToUpper(signature), strings.ToLower(signature), "\"" + signature + "\""} {
		s.others = append(s.others, of(token[:dot]+sig))
	}
	s.others = append(s.others, of("\""+token+"\""), of(strings.ReplaceAll(token, ".", "%2E")),
		of(strings.ReplaceAll(token, "=", "%3D")), of(token+"."), of("."+token))
	return s
}

// authorizations spells a scheme and what may follow it.
func authorizations(target, scheme, code string, codes []string, random int) spelled {
	lower, upper := strings.ToLower(scheme), strings.ToUpper(scheme)
	schemes := []string{scheme, lower, upper, scheme[:1] + upper[1:]}
	before := []string{"", " ", "\t", "\xa0", "\"", "x ", ", "}
	between := []string{" ", "  ", "\t", " \t ", "   \t\t", "\xa0", " \xa0", "", ":", ": ", "=", ",", "x ", "- ", "; ",
		"+", "\x0b", "\x85"}
	after := []string{"", " ", "\t", "\xa0", ",", " x", ", x", "; x=y", "\""}
	s := spelled{canonical: spelling{target, []string{"Authorization: " + scheme + " " + code}}}
	add := func(lines ...string) { s.others = append(s.others, spelling{target, lines}) }
	one := func(b, scheme, gap, code, a string) { add("Authorization: " + b + scheme + gap + code + a) }
	for _, c := range codes {
		one("", scheme, " ", c, "")
	}
	for _, n := range schemes {
		one("", n, " ", code, "")
	}
	for _, b := range before {
		one(b, scheme, " ", code, "")
	}
	for _, g := range between {
		one("", scheme, g, code, "")
	}
	for _, a := range after {
		one("", scheme, " ", code, a)
	}
	value := scheme + " " + code
	add("authorization: " + value)
	add("Authorization : " + value)
	add("Authorization:"+value, "Authorization: "+scheme+" junk")
	add("Authorization: "+scheme+" junk", "Authorization:"+value)
	add("Authorization: Digest x", "Authorization: "+value)
	add("Authorization: Digest x, " + value)
	add("Authorization: " + value + ", Digest x")
	add("Authorization:\r\n " + value)
	add("Proxy-Authorization: "+value, "Authorization: "+scheme)
	rng := rand.New(rand.NewPCG(seed, uint64(len(target))))
	pick := func(list []string) string { return list[rng.IntN(len(list))] }
	for range random {
		one(pick(before), pick(schemes), pick(between), pick(codes), pick(after))
	}
	return s
}

// headerSpellings spell a field with a key.
func headerSpellings() spelled {
	s := spelled{canonical: spelling{"/header", []string{"X-Api-Key: " + adasKey}}}
	add := func(lines ...string) { s.others = append(s.others, spelling{"/header", lines}) }
	junk := 0
	names := []string{"X-Api-Key", "x-api-key", "X-API-KEY", "X_Api_Key", "X-Api_Key", "X_Api-Key", "X.Api.Key",
		"X.Api-Key", "X_API.KEY", "x_api_key", "X-Api-Key ", "X Api Key", "X+Api+Key"}
	for _, name := range names {
		for _, value := range []string{adasKey, " " + adasKey, adasKey + " ", "\t" + adasKey + "\t", adasKey + ",",
			"," + adasKey, adasKey + ";", "\"" + adasKey + "\"", adasKey + "\xa0", "\x85" + adasKey, adasKey +
				" \xa0 ", adasKey + "\u00a0", adasKey + "\u3000"} {
			add(name + ":" + value)
		}
		junk++
		other := fmt.Sprintf("X-Api-Key: junk-%d", junk)
		add(name+": "+adasKey, other)
		add(other, name+": "+adasKey)
		add(name+": "+adasKey, name+": "+adasKey)
		add(name+": "+adasKey, "X-Api-Key:")
		add("X-Api-Key:", name+": "+adasKey)
		add(other + "," + adasKey)
	}
	return s
}

// querySpellings spell a parameter with a key.
func querySpellings() spelled {
	s := spelled{canonical: spelling{"/query?key=" + adasKey, nil}}
	add := func(query string) { s.others = append(s.others, spelling{"/query?" + query, nil}) }
	names := []string{"key", "k%65y", "%6bey", "KEY", "Key", "key[]", "key[0]", "key%5B%5D", "+key", "key+", "%20key",
		"key%00", "key%00x", "[key]", "%5Bkey%5D", "[key][x]", "key.", "&key", "amp;key", ";key", "x;key", "x=1;key", "key%3D", "?key", "%26key"}
	values := []string{adasKey, "%6b-ada", "k%2dada", "k%2Dada", adasKey + "%00", adasKey + "+", "%20" + adasKey,
		adasKey + "%zz", adasKey + ";", adasKey + "#x", "%256b-ada", adasKey + "%a0", "%C2%A0" + adasKey}
	for i, name := range names {
		for _, value := range values {
			add(name + "=" + value)
		}
		other := fmt.Sprintf("key=junk-%d", i)
		add(name + "=" + adasKey + "&" + other)
		add(other + "&" + name + "=" + adasKey)
		add(other + ";" + name + "=" + adasKey)
		add("key&" + name + "=" + adasKey)
		add("key=&" + name + "=" + adasKey)
		add(name + "=" + adasKey + "&key")
		add(name + "=" + adasKey + "&" + name + "=" + adasKey)
	}
	return s
}

// cookieSpellings spell a cookie.
func cookieSpellings() spelled {
	s := spelled{canonical: spelling{"/cookie", []string{"Cookie: sid=" + adasKey}}}
	add := func(lines ...string) { s.others = append(s.others, spelling{"/cookie", lines}) }
	names := []string{"sid", "SID", "s%69d", "%73id", " sid", "sid ", "\tsid", "$sid", "\"sid\"", "sid.", "sid["}
	values := []string{adasKey, "%6b-ada", "k%2Dada", "\"" + adasKey + "\"", "\"k%2dada\"", `"\153-ada"`, `\153-ada`,
		`"\k-ada"`, "'" + adasKey + "'", " " + adasKey, adasKey + " ",
		adasKey + "\xa0", "\x85" + adasKey, adasKey + "\u00a0", adasKey + "%a0", adasKey + " x", adasKey + ",x",
		adasKey + "\"x", "\"" + adasKey, adasKey + "%", adasKey + "%00", adasKey + "%20", adasKey +
			"+", "%256b-ada", "j:\"" + adasKey + "\""}
	for i, name := range names {
		for _, value := range values {
			add("Cookie: " + name + "=" + value)
		}
		pair, other := name+"="+adasKey, fmt.Sprintf("sid=junk-%d", i)
		for _, joint := range []string{"; ", ";", ", ", ",", " ", "\t", ";;", "; ;", "&"} {
			add("Cookie: " + pair + joint + other)
			add("Cookie: " + other + joint + pair)
			add("Cookie: x=y" + joint + pair)
		}
		add("Cookie: "+pair, "Cookie: "+other)
		add("Cookie: "+other, "Cookie: "+pair)
		add("Cookie: $Version=1; " + pair + "; $Path=/")
		add("Cookie: sid; " + pair)
		add("Cookie: sid=; " + pair)
		add("Cookie: " + pair + "; sid=")
		add("Cookie: x=\"a; " + pair + "\"")
		add("Cookie: x=\"a; " + pair)
		var many []string
		for k := range 5 {
			many = append(many, fmt.Sprintf("sid=many-%d-%d", i, k))
		}
		add("Cookie: " + strings.Join(append(many, pair), "; "))
		add("Cookie: " + strings.Join(append([]string{pair}, many...), "; "))
		add("Cookie: " + strings.Join(slices.Concat(many[:2], []string{pair}), "; "))
	}
	return s
}
