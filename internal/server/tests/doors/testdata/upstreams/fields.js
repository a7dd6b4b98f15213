// A server of the test of spellings: fields.js EXPRESS PORT. What it takes for the credential of ada it answers with ok.
const [express, port] = process.argv.slice(2)
const app = require(express)()
const jwt = require('jsonwebtoken'), auth = require('basic-auth')
const secret = process.env.JWT_SECRET, key = 'k-ada'

const token = (r) => {
  const parts = (r.headers.authorization || '').trim().split(/\s+/)
  return parts.length === 2 && /^bearer$/i.test(parts[0]) ? parts[1] : ''
}
// as in many a tutorial
const substring = (r) => /^bearer/i.test(r.headers.authorization || '') ? r.headers.authorization.substring(7).trim() : ''
const verify = (t) => { try { return jwt.verify(t, secret, { algorithms: ['HS256'] }).sub === 'ada' } catch { return false } }
const basic = (r) => { const u = auth(r); return !!u && u.name === 'ada' && u.pass === 's3cret' }
// Buffer takes base64 and base64url, and passes over the rest
const loose = (r) => /^basic/i.test(r.headers.authorization || '') && Buffer.from(r.headers.authorization.substring(6), 'base64').toString() === 'ada:s3cret'

app.use(require('cookie-parser')())
app.use((r, w) => {
  const ok = {
    '/basic': () => basic(r) || loose(r), '/jwt': () => verify(token(r)) || verify(substring(r)),
    '/bearer': () => token(r) === key || substring(r) === key, '/authorization': () => token(r) === key || substring(r) === key,
    '/session': () => verify(r.cookies.sess || ''), '/signed-header': () => verify(r.get('x-token') || ''), '/signed-query': () => verify(String(r.query.token)),
    '/header': () => r.get('x-api-key') === key, '/query': () => String(r.query.key) === key, '/cookie': () => r.cookies.sid === key
  }[r.path]
  if (ok && ok()) w.send('ok'); else w.status(403).send('no')
})
app.listen(Number(port), '127.0.0.1')
