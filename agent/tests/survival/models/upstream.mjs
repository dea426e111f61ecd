// The providers of models in a network namespace of their own: HTTPS as at the real addresses, answered by aimock, and every
// request as it came written to SEEN. Run with the folder of its packages as the working directory.
import { LLMock } from "@copilotkit/aimock";
import fs from "node:fs";
import http from "node:http";
import https from "node:https";

const { CERT, KEY, FIXTURES, SEEN } = process.env;
const mock = new LLMock({ port: 0 });
mock.addFixturesFromJSON(JSON.parse(fs.readFileSync(FIXTURES, "utf8")).fixtures);
await mock.start();

const note = ({ method, url, rawHeaders }, body) =>
  fs.appendFileSync(SEEN, JSON.stringify({ method, url, headers: rawHeaders, body }) + "\n");

const server = https.createServer({ cert: fs.readFileSync(CERT), key: fs.readFileSync(KEY) }, (request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts);
    note(request, body.toString());
    const onward = http.request(mock.url + request.url, { method: request.method, headers: request.headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.end(body);
  });
});
// A WebSocket would be answered, so that one that comes this far is seen.
server.on("upgrade", (request, socket) => {
  note(request, "");
  socket.end("HTTP/1.1 500 Unexpected\r\n\r\n");
});
server.listen(443, "127.0.0.1", () => console.log("ready"));
// Ends with the test.
process.stdin.on("end", () => process.exit()).resume();
