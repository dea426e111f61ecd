//! Budgets of model use in whole runs, with agent and gateway killed under them.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::site::Site;

/// Tokens of each answer: as many as a request of [`CALL`] asks for, so that none comes to more than was held for it.
const TOKENS: u64 = 110;

/// A provider on loopback: every chat completion uses [`TOKENS`], after a pause.
struct Provider {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Provider {
    fn start(pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || while answer(&stream, pause, &count).is_some() {});
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// A site whose run may call it, with this budget.
    fn site(&self, budget: &str) -> Site {
        // Without a policy: model calls are none of its business (A18).
        Site::configured(
            "@id(\"none\")\nforbid (principal, action, resource);\n",
            &format!(
                "\"models.example\" = \"127.0.0.1\"\n[providers.own]\napi = \"openai\"\n\
                 url = \"http://models.example:{}\"\n[agents.default.budget]\n{budget}\n",
                self.port
            ),
        )
    }
}

/// Answers one request; `None` at the connection's end.
fn answer(mut stream: &TcpStream, pause: Duration, count: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    count.fetch_add(1, Ordering::SeqCst);
    std::thread::sleep(pause);
    let body = r#"{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":100,"total_tokens":110}}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).ok()
}

/// One call; prints its status on a line.
const CALL: &str = "curl -s -m 10 -o last -w '%{http_code}\\n' -H \"Authorization: Bearer $STRAIT_TOKEN\" \
                    --json '{\"model\":\"tiny\",\"max_tokens\":100,\"messages\":[{\"role\":\"user\",\"content\":\"say something\"}]}' \
                    $STRAIT_GATEWAY/model/own/v1/chat/completions";

fn count(site: &Site, status: &str) -> usize {
    site.lines("out").iter().filter(|line| *line == status).count()
}

/// Calls and tokens that the records come to: `(over, under way)`.
fn on_record(site: &Site) -> ((u64, u64), usize) {
    let mut open: HashMap<String, (u64, u64)> = HashMap::new();
    let mut sum = (0, 0);
    for line in site.records().lines() {
        let Ok(record) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if record["kind"] != "model" {
            continue;
        }
        let charge = record.get("charge");
        let amount =
            charge.map(|charge| (charge["calls"].as_u64().unwrap(), charge["tokens"].as_u64().unwrap()));
        let id = record["id"].as_str().unwrap().to_owned();
        match (record["phase"].as_str(), amount) {
            (Some("decided"), Some(held)) => {
                open.insert(id, held);
            }
            (Some("done"), spent) => {
                if let Some(held) = open.remove(&id) {
                    let spent = spent.unwrap_or(held);
                    sum = (sum.0 + spent.0, sum.1 + spent.1);
                }
            }
            _ => {}
        }
    }
    (sum, open.len())
}

/// What `strait budget` says is spent in total.
fn told(site: &Site) -> (u64, u64) {
    let text = site.strait(&["budget", "--json"]);
    let agents: serde_json::Value = serde_json::from_str(&text).expect(&text);
    let agent = agents.as_array().unwrap().iter().find(|agent| agent["agent"] == "default");
    let spent = agent.map(|agent| agent["total"]["spent"].clone()).unwrap_or_default();
    (spent["calls"].as_u64().unwrap_or(0), spent["tokens"].as_u64().unwrap_or(0))
}

/// The count is what the records come to, once nothing moves.
fn assert_counted(site: &Site) {
    site.until("the count is that of the records", |site| {
        let before = on_record(site);
        let said = told(site);
        before == on_record(site) && before.1 == 0 && before.0 == said
    });
}

#[test]
fn fifty_calls_at_once_on_a_nearly_spent_budget_overshoot_by_one_at_most_a18_case72() {
    let provider = Provider::start(Duration::from_millis(300));
    let mut site = provider.site("run = { tokens = 1000 }");
    site.start_run(&format!(
        "for n in 1 2 3 4 5 6 7 8; do {CALL} >> out; done; \
         for n in $(seq 50); do {CALL} >> out & done; wait; echo over >> out; {CALL} >> out; cp last refused; sleep 60"
    ));
    site.until("all calls are over", |site| site.lines("out").len() == 60);
    // 880 tokens of 1000 were spent: one call more, or none.
    let (passed, refused) = (count(&site, "200"), count(&site, "429"));
    assert_eq!(passed + refused, 59, "{:?}", site.lines("out"));
    assert_eq!((passed, provider.asked()), (10, 10), "eight, one that fits and one that overshoots");
    site.until("the last refusal is there", |site| site.lines("refused").join("").ends_with('}'));
    let body: serde_json::Value = serde_json::from_str(&site.lines("refused").join("")).unwrap();
    // As the API itself says it, so that its clients give up.
    assert_eq!(body["error"]["code"], "insufficient_quota", "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("BUDGET_EXCEEDED: ")
            && message.contains("agent `default` for this run is used up: 1100 tokens of 1000 tokens"),
        "{message}"
    );
    assert_counted(&site);
    assert_eq!(told(&site), (10, 10 * TOKENS));
    // Another run begins at zero.
    site.start_run(&format!("{CALL} >> other; sleep 60"));
    site.until("the other run has called", |site| site.lines("other").len() == 1);
    assert_eq!(site.lines("other"), ["200"]);
}

#[test]
fn with_gateway_and_agent_killed_mid_window_the_count_is_that_of_the_records_a18_case73() {
    let provider = Provider::start(Duration::from_millis(20));
    let mut site = provider.site("total = { calls = 60 }\nday = { calls = 1000 }");
    let caller = format!("while :; do {CALL} >> out; done");
    site.start_run(&format!("({caller}) & ({caller}) & ({caller})"));
    let more = |site: &Site, calls: usize| {
        let before = count(site, "200");
        site.until("more calls are answered", |site| count(site, "200") >= before + calls);
    };
    more(&site, 8);
    site.kill_gateway();
    more(&site, 8);
    site.kill_agent();
    site.until("calls are refused for want of an agent", |site| count(site, "503") >= 1);
    site.start_agent();
    more(&site, 8);
    site.kill_agent();
    site.kill_gateway();
    site.start_agent();
    more(&site, 8);
    site.until("the budget is used up", |site| count(site, "429") >= 3);
    assert_counted(&site);
    // To the call: what a dead gateway had open counts, what a live one has refused doesn't.
    assert_eq!(told(&site).0, 60);
    assert_eq!(on_record(&site).0.0, 60);
    assert!(provider.asked() <= 60, "{} calls reached the provider", provider.asked());
    let (before, records) = (told(&site), site.records());
    for event in ["budget.warning", "budget.exceeded"] {
        assert_eq!(records.matches(&format!("\"event\":\"{event}\"")).count(), 1, "{event}");
    }
    // Set back, it begins anew, in a gateway that goes on too.
    assert!(site.strait(&["budget", "reset", "default"]).starts_with("default"));
    more(&site, 5);
    site.until("it is used up again", |site| on_record(site) == ((120, on_record(site).0.1), 0));
    let (calls, tokens) = on_record(&site).0;
    assert_eq!(calls, 120);
    assert_eq!(told(&site), (60, tokens - before.1), "what came after the reset");
    assert!(site.strait(&["metrics"]).contains("strait_model_calls_total{agent=\"default\"} 120"));
    let host = std::fs::read_to_string(site.state().join("host/log.jsonl")).unwrap();
    assert!(host.contains("\"event\":\"budget.reset\"") && host.contains("\"calls\":\"60\""));
}

/// A model without a price passes no budget of money alone, and the refusal names both ways out (case 74).
#[test]
fn a_model_without_a_price_is_refused_under_money_alone_case74() {
    let provider = Provider::start(Duration::ZERO);
    let mut site = provider.site("total = { usd = 1.0 }");
    site.start_run(&format!("while :; do {CALL} >> out; cp last told; sleep 0.1; done"));
    site.until("calls are refused", |site| count(site, "429") >= 1);
    site.until("the refusal is there", |site| site.lines("told").join("").ends_with('}'));
    let told = site.lines("told").join("");
    assert!(told.contains("BUDGET_EXCEEDED") && told.contains("price of this model isn't known"), "{told}");
    assert!(told.contains("[prices]") && told.contains("agents.default.budget"), "{told}");
    assert_eq!(provider.asked(), 0);
    let config = site.work().parent().unwrap().join("etc/strait.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("total = { usd = 1.0 }", "total = { usd = 1.0, calls = 5 }"))
        .unwrap();
    assert!(site.strait(&["reload"]).contains("live"));
    site.until("it is held to the count of calls", |site| count(site, "200") == 5);
    let before = count(&site, "429");
    site.until("and refused beyond it", |site| count(site, "429") > before + 2);
    assert_eq!((count(&site, "200"), provider.asked()), (5, 5));
}
