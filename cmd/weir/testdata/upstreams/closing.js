// A server that closes connections as soon as nothing was asked on them for a millisecond: PORT.
"use strict";
const server = require("http").createServer((request, response) => {
  request.resume();
  request.on("end", () => response.end("ok"));
});
server.keepAliveTimeout = 1;
server.listen(process.argv[2], "127.0.0.1");
