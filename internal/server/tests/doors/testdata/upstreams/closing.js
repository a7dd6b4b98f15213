// A server that closes a connection under its second request, as it does when that comes just when
// the connection has been idle for too long: PORT.
"use strict";
require("http").createServer((request, response) => {
  const socket = request.socket;
  request.resume();
  request.on("end", () => {
    if (socket.used) {
      socket.destroy();
    } else {
      socket.used = true;
      response.end("ok");
    }
  });
}).listen(process.argv[2], "127.0.0.1");
