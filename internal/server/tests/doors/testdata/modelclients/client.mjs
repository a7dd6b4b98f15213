// Asks a model twice with an official client: client.mjs openai|anthropic URL NAME.
// It prints how that ended, and how long the client slept between tries.
import { createRequire } from 'node:module'
const [maker, url, name] = process.argv.slice(2)
const require = createRequire(process.env.MODULES + '/')
const package_ = require(maker === 'openai' ? 'openai' : '@anthropic-ai/sdk')
const timeout = 123456, slept = []
const real = globalThis.setTimeout
globalThis.setTimeout = (f, ms, ...more) => { // it is not to be waited for
  if (ms === timeout || !new Error().stack.includes('node_modules')) return real(f, ms, ...more)
  slept.push(ms / 1000)
  return real(f, 0, ...more)
}
const options = { apiKey: 'secret', timeout, defaultHeaders: { 'x-client': name } }
const messages = [{ role: 'user', content: 'hello' }]
let ask
if (maker === 'openai') {
  const client = new package_.OpenAI({ ...options, baseURL: url + '/v1' })
  ask = () => client.chat.completions.create({ model: 'm', messages })
} else {
  const client = new package_.Anthropic({ ...options, baseURL: url })
  ask = () => client.messages.create({ model: 'm', messages, max_tokens: 5 })
}
let ended = 'answered'
try {
  await ask()
  await ask()
} catch (e) {
  ended = `${e.constructor.name} ${e.status}`
}
console.log(JSON.stringify({ ended, slept }))
process.exit(0)
