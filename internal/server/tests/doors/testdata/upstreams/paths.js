// A server of the test of paths: paths.js EXPRESS PORT. What a handler answers names it.
const express = require(process.argv[2])
const app = express()
const reached = name => (request, response) => response.set('X-Reached', name).send(name)
app.post('/login', reached('login'))
app.post('/Sign-In/', reached('signin'))
app.post('/api/pay/:id', reached('pay'))
app.get('/report', reached('report'))
app.listen(Number(process.argv[3]), '127.0.0.1')
