//! The agent's end of the link, in memory.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixDatagram as StdDatagram,
    },
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait_contract::{
    approval::Held,
    code::Code,
    ids::RecordId,
    message::{Drifted, MAX_PACKET, Misused, PolicyFile, Secret, ToAgent, ToGateway},
    record::{Activity, Body, Decision, Kind, Phase, Record, Step, Unrecorded},
    run::Process,
    seqpacket,
};
use tokio::{io::Interest, net::UnixDatagram, sync::mpsc};

/// What the agent does with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Writes,
    Refuses(Unrecorded),
}

#[derive(Debug)]
pub struct Shared {
    pub records: Mutex<Vec<Record>>,
    /// The gateway's spool, as an agent would keep it.
    pub spool: File,
    pub mood: Mutex<Mood>,
    pub compiled: Mutex<HashMap<u64, Option<String>>>,
    pub process: Mutex<Option<Process>>,
    pub asked: Mutex<u32>,
    /// Tools that aren't what was pinned, and what of them differs.
    pub drifted: Mutex<Vec<(String, String)>>,
    /// Those that an agent keeps for later gateways.
    pub kept_drifts: Mutex<HashMap<String, Drifted>>,
    /// Values of credentials, in the order in which they are handed over; the last one stays.
    pub credentials: Mutex<HashMap<String, Vec<Result<String, String>>>>,
    /// Names of the credentials that were asked for.
    pub handed: Mutex<Vec<String>>,
    /// Tokens that came from the wrong run: from which, whose.
    pub mismatches: Mutex<Vec<(String, String)>>,
    /// Placeholders that were on their way to where they aren't for.
    pub misused: Mutex<Vec<Misused>>,
    /// Calls that wait for a person, with what they carry; those that don't any more.
    pub held: Mutex<Vec<(Held, Vec<u8>)>>,
    pub withdrawn: Mutex<Vec<RecordId>>,
    pieces: Mutex<Vec<u8>>,
}

/// One session of the agent.
pub struct Agent {
    pub shared: Arc<Shared>,
    to_gateway: mpsc::UnboundedSender<(ToGateway, Vec<OwnedFd>)>,
    task: tokio::task::JoinHandle<()>,
}

impl Shared {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            records: Mutex::default(),
            spool: spool(),
            mood: Mutex::new(Mood::Writes),
            compiled: Mutex::default(),
            process: Mutex::default(),
            asked: Mutex::default(),
            credentials: Mutex::default(),
            handed: Mutex::default(),
            mismatches: Mutex::default(),
            misused: Mutex::default(),
            held: Mutex::default(),
            withdrawn: Mutex::default(),
            pieces: Mutex::default(),
            drifted: Mutex::default(),
            kept_drifts: Mutex::default(),
        })
    }

    /// What is on record, in the log first.
    fn all(&self) -> Vec<Record> {
        // Read in this order: what leaves the spool is in the log before.
        let spooled = self.spooled();
        let mut records = self.records.lock().unwrap().clone();
        let logged: HashSet<_> = records.iter().map(|record| (record.id, record.phase)).collect();
        records.extend(spooled.into_iter().filter(|record| !logged.contains(&(record.id, record.phase))));
        records
    }

    /// Activities on record, those in the log first, with id and phase.
    pub fn activities(&self) -> Vec<(RecordId, Option<Phase>, Activity)> {
        let activity = |record: Record| match record.body {
            Body::Activity(activity) => Some((record.id, record.phase, *activity)),
            Body::Event(_) | Body::Trace(_) => None,
        };
        self.all().into_iter().filter_map(activity).collect()
    }

    /// What is in the spool.
    pub fn spooled(&self) -> Vec<Record> {
        strait_contract::spool::left(&self.spool).unwrap().batches.into_iter().flatten().collect()
    }

    /// Steps in the order written, with id and phase.
    pub fn steps(&self) -> Vec<(RecordId, Option<Phase>, Step)> {
        let step = |record: Record| match record.body {
            Body::Trace(step) => Some((record.id, record.phase, *step)),
            Body::Event(_) | Body::Activity(_) => None,
        };
        self.all().into_iter().filter_map(step).collect()
    }

    /// `done` lines of steps, once there are so many.
    pub async fn steps_done(&self, count: usize) -> Vec<Step> {
        for _ in 0..500 {
            let done = self.steps().into_iter().filter(|(_, phase, _)| *phase == Some(Phase::Done));
            let done: Vec<_> = done.map(|(_, _, step)| step).collect();
            if done.len() >= count {
                return done;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} steps did not come: {:#?}", self.steps());
    }

    /// Everything on record, as text.
    pub fn text(&self) -> String {
        format!("{:?}", self.all())
    }

    /// Every step has one `decided` and one `done` line; a permitted one has activity that bears its id, a refused one and
    /// a question of a server's none.
    pub fn check_steps(&self) {
        let (steps, activities) = (self.steps(), self.activities());
        for (id, phase, step) in &steps {
            let both = steps.iter().filter(|(other, ..)| other == id).count();
            assert_eq!(both, 2, "{step:#?}");
            let legs: Vec<_> =
                activities.iter().filter(|(.., activity)| activity.step == Some(*id)).collect();
            let question = ["sampling/createMessage", "elicitation/create", "roots/list"]
                .contains(&step.target.as_str());
            if *phase == Some(Phase::Decided) {
                assert_eq!(
                    legs.len(),
                    if step.decision == Decision::Allow && !question { 2 } else { 0 },
                    "{step:#?} {legs:#?}"
                );
                assert!(legs.iter().all(|(leg, ..)| leg != id));
            }
        }
    }

    /// `done` lines in the order written.
    pub fn done(&self) -> Vec<Activity> {
        let all = self.activities();
        all.into_iter()
            .filter(|(_, phase, _)| *phase == Some(Phase::Done))
            .map(|(_, _, activity)| activity)
            .collect()
    }

    /// Waits until this many `done` lines of a kind are there, and gives all of that kind.
    pub async fn done_of(&self, kind: Kind, count: usize) -> Vec<Activity> {
        for _ in 0..500 {
            let done: Vec<_> = self.done().into_iter().filter(|activity| activity.kind == kind).collect();
            if done.len() >= count {
                return done;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} records of {kind:?} did not come: {:#?}", self.done());
    }

    /// Every id has exactly one `decided` and one `done` line, in that order and of one mind.
    pub fn check_pairs(&self) {
        let mut decided: HashMap<RecordId, Decision> = HashMap::new();
        let mut done: HashMap<RecordId, Decision> = HashMap::new();
        for (id, phase, activity) in self.activities() {
            match phase {
                Some(Phase::Decided) => {
                    assert!(
                        decided.insert(id, activity.decision).is_none(),
                        "two decided lines: {activity:#?}"
                    );
                }
                Some(Phase::Done) => {
                    // What policy permits may still be refused by its address; never the other way round.
                    let refused_later = activity.code.is_some_and(Code::is_refusal);
                    let before = if refused_later { decided.get(&id) } else { Some(&activity.decision) };
                    assert_eq!(decided.get(&id), before, "{activity:#?}");
                    assert!(before.is_some(), "done before decided: {activity:#?}");
                    assert!(done.insert(id, activity.decision).is_none(), "two done lines: {activity:#?}");
                    assert!(activity.duration_us.is_some());
                }
                None => {}
            }
        }
        assert_eq!(decided.len(), done.len(), "a call has no done line: {:#?}", self.activities());
    }

    /// Waits until nothing is open, then checks the pairs.
    pub async fn settled(&self) {
        for _ in 0..300 {
            let all = self.activities();
            let count = |phase| all.iter().filter(|(_, p, _)| *p == Some(phase)).count();
            if count(Phase::Decided) == count(Phase::Done) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.check_pairs();
    }

    /// Waits until all that is on record is in the log.
    pub async fn logged(&self) {
        for _ in 0..500 {
            if self.spooled().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("what is in the log stays in the spool: {:#?}", self.spooled());
    }

    /// The only refusal so far.
    pub fn only_refusal(&self) -> Activity {
        let refused: Vec<_> =
            self.done().into_iter().filter(|activity| activity.decision == Decision::Deny).collect();
        assert_eq!(refused.len(), 1, "{refused:#?}");
        refused.into_iter().next().unwrap()
    }

    /// Waits until so many calls have asked for a person.
    pub async fn held(&self, count: usize) -> Vec<(Held, Vec<u8>)> {
        for _ in 0..2000 {
            let held = self.held.lock().unwrap().clone();
            if held.len() >= count {
                return held;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} calls did not ask: {:#?}", self.held.lock().unwrap().len());
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn codes(&self) -> Vec<Option<Code>> {
        self.done().into_iter().map(|activity| activity.code).collect()
    }
}

fn spool() -> File {
    let memfd = rustix::fs::memfd_create("spool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, strait_contract::spool::BYTES).unwrap();
    memfd.into()
}

impl Agent {
    /// A session with the gateway's end of its socket.
    pub fn begin(shared: &Arc<Shared>) -> (Self, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let socket = UnixDatagram::from_std(StdDatagram::from(ours)).unwrap();
        let (to_gateway, commands) = mpsc::unbounded_channel();
        let task = tokio::spawn(serve(socket, commands, to_gateway.clone(), Arc::clone(shared)));
        (Self { shared: Arc::clone(shared), to_gateway, task }, theirs)
    }

    pub fn tell(&self, message: ToGateway, fds: Vec<OwnedFd>) {
        self.to_gateway.send((message, fds)).unwrap();
    }

    /// Sends policies and waits until they are in force.
    pub async fn policies(&self, epoch: u64, files: &[PolicyFile]) {
        let memfd = rustix::fs::memfd_create("policies", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memfd, &postcard::to_stdvec(files).unwrap()).unwrap();
        self.tell(ToGateway::Policy { epoch, digest: "test".to_owned() }, vec![memfd]);
        for _ in 0..2000 {
            if let Some(refused) = self.shared.compiled.lock().unwrap().get(&epoch) {
                assert_eq!(*refused, None, "the test's policies are refused");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the policies were not compiled");
    }

    /// Breaks the link off.
    pub async fn die(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn serve(
    socket: UnixDatagram,
    mut commands: mpsc::UnboundedReceiver<(ToGateway, Vec<OwnedFd>)>,
    back: mpsc::UnboundedSender<(ToGateway, Vec<OwnedFd>)>,
    shared: Arc<Shared>,
) {
    let mut scratch = vec![0u8; MAX_PACKET];
    loop {
        tokio::select! {
            Some((message, fds)) = commands.recv() => {
                let packet = seqpacket::encode(&message).unwrap();
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                loop {
                    socket.writable().await.unwrap();
                    match socket.try_io(Interest::WRITABLE, || io_result(seqpacket::send(&socket, &packet, &fds))) {
                        Ok(()) => break,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => return,
                    }
                }
            }
            ready = socket.readable() => {
                ready.unwrap();
                match socket.try_io(Interest::READABLE, || io_result(seqpacket::receive(&socket, &mut scratch))) {
                    Ok((message, _)) => handle(message, &back, &shared),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        }
    }
}

fn io_result<T>(result: Result<T, seqpacket::LinkError>) -> io::Result<T> {
    result.map_err(|error| match error {
        seqpacket::LinkError::Io(error) => error,
        other => io::Error::other(other),
    })
}

fn handle(message: ToAgent, back: &mpsc::UnboundedSender<(ToGateway, Vec<OwnedFd>)>, shared: &Shared) {
    match message {
        ToAgent::Hello { contract, .. } => assert_eq!(contract, strait_contract::CONTRACT),
        ToAgent::RunClosed(_) | ToAgent::ToolsSeen { .. } => {}
        ToAgent::Records { batch, records } => {
            let refused = match *shared.mood.lock().unwrap() {
                Mood::Writes => {
                    shared.records.lock().unwrap().extend(records);
                    None
                }
                Mood::Refuses(why) => Some(why),
            };
            let _ = back.send((ToGateway::Recorded { batch, refused }, Vec::new()));
        }
        ToAgent::PolicyCompiled { epoch, refused } => {
            shared.compiled.lock().unwrap().insert(epoch, refused);
        }
        ToAgent::HeldPiece { bytes, .. } => shared.pieces.lock().unwrap().extend(bytes),
        ToAgent::Held(held) => {
            let content = std::mem::take(&mut *shared.pieces.lock().unwrap());
            shared.held.lock().unwrap().push((*held, content));
        }
        ToAgent::Withdrawn { call } => shared.withdrawn.lock().unwrap().push(call),
        ToAgent::WhoIs { ticket, .. } => {
            *shared.asked.lock().unwrap() += 1;
            let process = shared.process.lock().unwrap().clone();
            let _ = back.send((ToGateway::Process { ticket, process }, Vec::new()));
        }
        ToAgent::Credential { ticket, name } => {
            shared.handed.lock().unwrap().push(name.to_string());
            let mut all = shared.credentials.lock().unwrap();
            let value = match all.get_mut(name.as_str()) {
                Some(values) if values.len() > 1 => values.remove(0),
                Some(values) => values[0].clone(),
                None => Err("there is none".to_owned()),
            };
            let value = value.map(Secret::new);
            let back = back.clone();
            // Long enough for other calls to come in between.
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(30)).await;
                let _ = back.send((ToGateway::Credential { ticket, value }, Vec::new()));
            });
        }
        ToAgent::PlaceholderMisused(misused) => shared.misused.lock().unwrap().push(misused),
        ToAgent::ToolDrifted { run, drifted } => {
            let Drifted { server, tool, differs, .. } = drifted.clone();
            shared.kept_drifts.lock().unwrap().insert(format!("{server}/{tool}"), drifted);
            if run.is_some() {
                shared.drifted.lock().unwrap().push((format!("{server}/{tool}"), differs));
            }
        }
        ToAgent::ToolAgrees { server, tool } => {
            shared.kept_drifts.lock().unwrap().remove(&format!("{server}/{tool}"));
        }
        ToAgent::TokenMismatch { from, owner } => {
            shared.mismatches.lock().unwrap().push((from.to_string(), owner.to_string()));
        }
    }
}
