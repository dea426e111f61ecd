// The official TypeScript client, driven through everything that a server can do. Prints what it saw as JSON.
// Run with the folder of its packages as the working directory: URL, TOKEN and WHAT come from the environment, and
// ADDRESS, which is what a run's resolver would say of the gateway's name.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import dns from "node:dns";

const { URL: address, TOKEN: token, WHAT: what, ADDRESS: gateway } = process.env;
const headers = token ? { Authorization: `Bearer ${token}` } : {};
const lookup = dns.lookup;
dns.lookup = (name, options, done) => lookup(name === "strait.internal" ? gateway : name, options, done);
const transport = (more = {}) =>
  new StreamableHTTPClientTransport(new URL(address), { requestInit: { headers }, ...more });
const saw = {};
const notes = [];

function client() {
  const made = new Client(
    { name: "official", version: "1.0.0" },
    { capabilities: { sampling: {}, elicitation: { form: {} }, roots: { listChanged: true } } },
  );
  made.setRequestHandler(types.CreateMessageRequestSchema, async (request) => ({
    role: "assistant",
    model: "none",
    content: { type: "text", text: `sampled ${request.params.maxTokens}` },
  }));
  made.setRequestHandler(types.ElicitRequestSchema, async () => ({ action: "decline" }));
  made.setRequestHandler(types.ListRootsRequestSchema, async () => ({ roots: [{ uri: "file:///work", name: "work" }] }));
  made.fallbackNotificationHandler = async (notification) => notes.push(notification.method);
  return made;
}

async function attempt(name, call) {
  try {
    saw[name] = await call();
  } catch (error) {
    saw[name] = { failed: String(error.message ?? error), code: error.code };
  }
}

async function everything() {
  const one = client();
  const first = transport();
  await one.connect(first);
  saw.server = one.getServerVersion();
  saw.capabilities = Object.keys(one.getServerCapabilities()).filter((name) => name !== "tasks").sort();
  saw.instructions = one.getInstructions()?.length;
  await attempt("tools", async () => (await one.listTools()).tools);
  await attempt("echo", () => one.callTool({ name: "echo", arguments: { message: "héllo\n\u{1f600}" } }));
  await attempt("sum", () => one.callTool({ name: "get-sum", arguments: { a: 1.5, b: 2 } }));
  await attempt("image", () => one.callTool({ name: "get-tiny-image", arguments: {} }));
  await attempt("structured", () => one.callTool({ name: "get-structured-content", arguments: { location: "New York" } }));
  await attempt("unknown", () => one.callTool({ name: "no-such-tool", arguments: {} }));
  await attempt("wrong", () => one.callTool({ name: "get-sum", arguments: { a: "x" } }));
  await attempt("sampling", () => one.callTool({ name: "trigger-sampling-request", arguments: { prompt: "hi", maxTokens: 7 } }));
  await attempt("elicitation", () => one.callTool({ name: "trigger-elicitation-request", arguments: {} }));
  await attempt("roots", () => one.callTool({ name: "get-roots-list", arguments: {} }));
  await attempt("resources", async () => (await one.listResources()).resources);
  await attempt("templates", async () => (await one.listResourceTemplates()).resourceTemplates);
  await attempt("resource", async () => {
    const text = JSON.stringify(await one.readResource({ uri: "demo://resource/dynamic/text/1" }));
    return text.replace(/\d+:\d+:\d+( [AP]M)?/g, "TIME");
  });
  await attempt("prompts", async () => (await one.listPrompts()).prompts);
  await attempt("prompt", () => one.getPrompt({ name: "simple-prompt" }));
  await attempt("completion", () =>
    one.complete({
      ref: { type: "ref/prompt", name: "completable-prompt" },
      argument: { name: "department", value: "E" },
    }),
  );
  await attempt("level", () => one.setLoggingLevel("debug"));
  const progress = [];
  await attempt("long", () =>
    one.callTool({ name: "trigger-long-running-operation", arguments: { duration: 1, steps: 4 } }, undefined, {
      onprogress: (step) => progress.push(`${step.progress}/${step.total}`),
    }),
  );
  saw.progress = progress;
  await attempt("parallel", async () => {
    const calls = [1, 2, 3, 4, 5, 6].map((n) =>
      n % 2
        ? one.callTool({ name: "trigger-long-running-operation", arguments: { duration: 0.5, steps: n } })
        : one.callTool({ name: "echo", arguments: { message: String(n) } }),
    );
    return (await Promise.all(calls)).map((result) => result.content[0].text);
  });
  await attempt("cancel", () => {
    const abort = new AbortController();
    setTimeout(() => abort.abort("enough"), 300);
    return one.callTool({ name: "trigger-long-running-operation", arguments: { duration: 20, steps: 2 } }, undefined, {
      signal: abort.signal,
    });
  });
  await attempt("after", () => one.callTool({ name: "echo", arguments: { message: "still there" } }));
  await attempt("ping", () => one.ping());
  await resume(one, first);
}

// A call whose client loses its connection, and gets its result on another one.
async function resume(one, first) {
  let place;
  const call = { name: "trigger-long-running-operation", arguments: { duration: 2, steps: 4 } };
  const request = { method: "tools/call", params: call };
  const lost = one
    .request(request, types.CallToolResultSchema, { onresumptiontoken: (token) => (place = token) })
    .catch((error) => String(error.message));
  while (!place) await new Promise((done) => setTimeout(done, 20));
  const session = first.sessionId;
  await one.close();
  await lost;
  // The server goes on meanwhile and keeps what nobody hears.
  await new Promise((done) => setTimeout(done, 2500));
  const other = client();
  const second = transport({ sessionId: session });
  await other.connect(second);
  await attempt("resumed", () =>
    other.request(request, types.CallToolResultSchema, { resumptionToken: place, timeout: 8000 }),
  );
  await attempt("ended", () => second.terminateSession());
  await attempt("gone", async () => {
    const third = transport({ sessionId: session });
    const late = client();
    await late.connect(third);
    try {
      await late.ping({ timeout: 3000 });
      return "answered";
    } catch {
      return "refused";
    }
  });
  await other.close();
}

async function some() {
  const one = client();
  await one.connect(transport());
  saw.capabilities = Object.keys(one.getServerCapabilities()).sort();
  await attempt("tools", async () => (await one.listTools()).tools.map((tool) => tool.name));
  await attempt("echo", () => one.callTool({ name: "echo", arguments: { message: "hi" } }));
  await attempt("sum", () => one.callTool({ name: "get-sum", arguments: { a: 1, b: 2 } }));
  await attempt("env", () => one.callTool({ name: "get-env", arguments: {} }));
  await one.close();
}

async function time() {
  const one = client();
  await one.connect(transport());
  const message = "x".repeat(2048);
  const took = [];
  for (let n = 0; n < 300; n++) {
    const begun = process.hrtime.bigint();
    await one.callTool({ name: "echo", arguments: { message } });
    took.push(Number(process.hrtime.bigint() - begun) / 1000);
  }
  took.sort((a, b) => a - b);
  saw.p50 = took[150];
  await one.close();
}

await { everything, some, time }[what]();
saw.notes = [...new Set(notes)].sort();
console.log(JSON.stringify(saw));
process.exit(0);
