//! Two network namespaces joined by a veth pair: one that dials, one that is a small internet with invented public
//! addresses and no way out. Servers are real.

use std::{
    collections::HashMap,
    fs::File,
    net::IpAddr,
    os::fd::AsFd,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
};

use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// DNS server of the internet.
pub(super) const DNS: &str = "9.9.9.9";
/// A host in it.
pub(super) const WEB: &str = "93.184.216.34";
/// Another one.
pub(super) const OTHER: &str = "8.8.4.4";
/// A public address of the dialling host itself.
pub(super) const OWN: &str = "1.2.3.4";
/// A private address in it, where something listens.
pub(super) const PRIVATE: &str = "10.77.0.1";

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    let out = out.expect("`ip` is missing: run `cargo xtask setup`");
    assert!(
        out.status.success(),
        "ip {args}: {} (these tests need root)",
        String::from_utf8_lossy(&out.stderr)
    );
}

pub(super) struct Internet {
    dialling: String,
    far: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    pub(super) zone: Arc<Zone>,
}

/// What the DNS server knows, and what it was asked.
#[derive(Default)]
pub(super) struct Zone {
    /// Answers to the n-th question for a name; the last one stays.
    pub(super) answers: Mutex<HashMap<&'static str, Vec<Answer>>>,
    pub(super) asked: Mutex<HashMap<(String, RecordType), usize>>,
}

#[derive(Clone)]
pub(super) enum Answer {
    A(&'static [&'static str]),
    Cname(&'static str),
    Code(ResponseCode),
    /// Truncated over UDP, whole over TCP.
    Long(usize),
    Silence,
}

impl Internet {
    /// Makes the namespaces and starts `servers` within the far one, then waits until they listen.
    pub(super) fn new<F, S>(servers: F) -> Self
    where
        F: FnOnce() -> S + Send + 'static,
        S: Future<Output = ()>,
    {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (dialling, far) = (format!("strait-g2d-{tag}"), format!("strait-g2f-{tag}"));
        ip(&format!("netns add {dialling}"));
        ip(&format!("netns add {far}"));
        let mut it = Self { dialling, far, stop: None, thread: None, zone: Arc::default() };
        let (d, f) = (&it.dialling, &it.far);
        ip(&format!("-n {d} link add near type veth peer name far netns {f}"));
        for (ns, link, addr) in [(d, "near", "10.77.0.2/24"), (f, "far", "10.77.0.1/24")] {
            ip(&format!("-n {ns} addr add {addr} dev {link}"));
            ip(&format!("-n {ns} link set {link} up"));
            ip(&format!("-n {ns} link set lo up"));
        }
        ip(&format!("-n {d} route add default via 10.77.0.1"));
        ip(&format!("-n {d} addr add {OWN}/32 dev lo"));
        for addr in [DNS, WEB, OTHER] {
            ip(&format!("-n {f} addr add {addr}/32 dev lo"));
        }
        let (ready, wait) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (far, zone) = (it.far.clone(), it.zone.clone());
        it.thread = Some(std::thread::spawn(move || {
            within(&far, async move {
                servers().await;
                dns(zone).await;
                ready.send(()).unwrap();
                let _ = stopped.await;
            });
        }));
        it.stop = Some(stop);
        wait.recv().unwrap();
        it
    }

    /// Runs a test where the dialling happens.
    pub(super) fn dial<T: Send>(&self, test: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| scope.spawn(|| self.enter(test)).join().unwrap())
    }

    /// The same on this thread, which must end afterwards.
    pub(super) fn enter<T>(&self, test: impl Future<Output = T>) -> T {
        within(&self.dialling, test)
    }

    pub(super) fn knows(&self, name: &'static str, answers: &[Answer]) {
        self.zone.answers.lock().unwrap().insert(name, answers.to_vec());
    }

    pub(super) fn asked(&self, name: &str, kind: RecordType) -> usize {
        self.zone.asked.lock().unwrap().get(&(name.to_owned(), kind)).copied().unwrap_or(0)
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for name in [&self.dialling, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Runs a future on this thread, in a network namespace; the thread must end afterwards.
fn within<T>(netns: &str, future: impl Future<Output = T>) -> T {
    let file = File::open(format!("/run/netns/{netns}")).unwrap();
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Accepts for ever and gives each connection to `each`.
pub(super) async fn listen<F>(addr: &str, port: u16, each: impl Fn(TcpStream) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((addr, port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
}

async fn dns(zone: Arc<Zone>) {
    let socket = UdpSocket::bind((DNS, 53)).await.unwrap();
    let shared = zone.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            if let Some(answer) = shared.answer(&buffer[..len], true) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    listen(DNS, 53, move |mut stream| {
        let zone = zone.clone();
        async move {
            while let Ok(len) = stream.read_u16().await {
                let mut question = vec![0; usize::from(len)];
                stream.read_exact(&mut question).await.unwrap();
                let answer = zone.answer(&question, false).unwrap();
                stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        }
    })
    .await;
}

impl Zone {
    fn answer(&self, question: &[u8], udp: bool) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).unwrap();
        let query = question.queries[0].clone();
        let name = query.name().to_ascii().to_lowercase();
        let name = name.trim_end_matches('.').to_owned();
        let count = {
            let mut asked = self.asked.lock().unwrap();
            let count = asked.entry((name.clone(), query.query_type())).or_default();
            *count += 1;
            *count
        };
        let mut reply = Message::new(question.metadata.id, MessageType::Response, question.metadata.op_code);
        reply.metadata.recursion_desired = true;
        reply.metadata.recursion_available = true;
        reply.add_query(query.clone());
        let answers = self.answers.lock().unwrap();
        let answer = answers.get(name.as_str()).map(|list| list[(count - 1).min(list.len() - 1)].clone());
        let mut add = |addr: IpAddr| {
            let data = match addr {
                IpAddr::V4(addr) => RData::A(rdata::A(addr)),
                IpAddr::V6(addr) => RData::AAAA(rdata::AAAA(addr)),
            };
            if query.query_type() == data.record_type() {
                reply.add_answer(Record::from_rdata(query.name().clone(), 0, data));
            }
        };
        match answer.unwrap_or(Answer::Code(ResponseCode::NXDomain)) {
            Answer::A(addrs) => addrs.iter().for_each(|addr| add(addr.parse().unwrap())),
            Answer::Cname(to) => {
                let to = RData::CNAME(rdata::CNAME(Name::from_ascii(to).unwrap()));
                reply.add_answer(Record::from_rdata(query.name().clone(), 0, to));
            }
            Answer::Code(code) => reply.metadata.response_code = code,
            Answer::Long(_) if udp => reply.metadata.truncation = true,
            Answer::Long(count) => {
                add(WEB.parse().unwrap());
                (1..count).for_each(|at| add(IpAddr::from([93, 184, 217, u8::try_from(at).unwrap()])));
            }
            Answer::Silence => return None,
        }
        Some(reply.to_vec().unwrap())
    }
}
