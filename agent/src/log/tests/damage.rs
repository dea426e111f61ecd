//! Every way to change a small chain is named with its line (A31, case 101).

use super::*;

fn run_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("runs/r")
}

fn flaw(state_dir: &Path) -> Option<(u64, Reason)> {
    match verify(state_dir, Some("r")).unwrap() {
        Verdict::Intact { .. } => None,
        Verdict::Broken(flaw) => Some((flaw.line, flaw.reason)),
    }
}

#[tokio::test]
async fn a_flipped_byte_anywhere_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 4).await;
    assert_eq!(flaw(dir.path()), None, "positive control");
    let path = run_dir(dir.path()).join("log.jsonl");
    let good = fs::read(&path).unwrap();
    let mut line = 1;
    for at in 0..good.len() {
        // A low bit, the bit that changes case, and one that makes a line feed of some bytes.
        for flip in [0x01, 0x20, good[at] ^ b'\n'] {
            if flip == 0 {
                continue;
            }
            let mut bad = good.clone();
            bad[at] ^= flip;
            fs::write(&path, &bad).unwrap();
            let found = flaw(dir.path());
            assert_eq!(found.as_ref().map(|(line, _)| *line), Some(line), "byte {at} ^ {flip}: {found:?}");
        }
        if good[at] == b'\n' {
            line += 1;
        }
    }
    assert_eq!(line, 5);
    fs::write(&path, &good).unwrap();
    assert_eq!(flaw(dir.path()), None);
}

#[tokio::test]
async fn lines_that_are_removed_moved_repeated_added_or_cut_are_named() {
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 5).await;
    let path = run_dir(dir.path()).join("log.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let check = |changed: String, expect: (u64, Reason)| {
        fs::write(&path, changed).unwrap();
        assert_eq!(flaw(dir.path()), Some(expect));
    };
    let join = |order: &[usize]| order.iter().map(|at| lines[*at]).collect::<String>();
    check(join(&[1, 2, 3, 4]), (1, Reason::OutOfOrder));
    check(join(&[0, 1, 3, 4]), (3, Reason::OutOfOrder));
    check(join(&[0, 2, 1, 3, 4]), (2, Reason::OutOfOrder));
    check(join(&[0, 1, 2, 3, 3, 4]), (5, Reason::OutOfOrder));
    check(join(&[0, 1, 2, 3]), (5, Reason::Missing(5)));
    check(String::new(), (1, Reason::Missing(5)));
    check(text.trim_end().to_owned(), (5, Reason::Half));
    check(text.get(..text.len() - 40).unwrap().to_owned(), (5, Reason::Half));
    check(format!("{text}x"), (6, Reason::Half));
    check(format!("{text}\n"), (6, Reason::Changed));
    fs::remove_file(&path).unwrap();
    assert_eq!(flaw(dir.path()), Some((1, Reason::Missing(5))));
    fs::write(&path, &text).unwrap();
    assert_eq!(flaw(dir.path()), None);
}

/// Without the head, whoever rewrites the last line with a right hash would go unseen.
#[tokio::test]
async fn a_rewritten_last_line_with_a_right_hash_is_named() {
    use sha2::{Digest as _, Sha256};
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 3).await;
    let path = run_dir(dir.path()).join("log.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let last = text.lines().last().unwrap();
    let (body, _) = last.split_once(",\"hash\":\"").unwrap();
    let forged_body = body.replace("\"deny\"", "\"allow\"");
    let forged = format!("{forged_body},\"hash\":\"{}\"}}", line::hex(&Sha256::digest(&forged_body)));
    fs::write(&path, text.replace(last, &forged)).unwrap();
    // Same length or not, it isn't the line the head knows.
    assert_eq!(flaw(dir.path()), Some((3, Reason::NotTheHeads)));
}

#[tokio::test]
async fn a_changed_foreign_or_missing_head_is_named() {
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 2).await;
    let path = run_dir(dir.path()).join("head");
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len(), head::LENGTH);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        let key = key::public_key(dir.path()).unwrap();
        assert!(head::Head::read(&run_dir(dir.path()), "r", &key).is_err(), "byte {at}");
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(flaw(dir.path()), None);
    fs::copy(dir.path().join("host/head"), &path).unwrap();
    assert!(matches!(flaw(dir.path()), Some((0, Reason::Head(_)))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(flaw(dir.path()), Some((0, Reason::Head(_)))));
}

#[tokio::test]
async fn a_damaged_chain_is_not_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 3).await;
    let path = run_dir(dir.path()).join("log.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    fs::write(&path, text.lines().next().unwrap().to_owned() + "\n").unwrap();
    assert!(matches!(log.open_run(meta("r")).await, Err(LogError::Damaged { line: 3, .. })));
    assert_eq!(log.append(vec![request("r", "https://a.test/")]).await, Err(Unrecorded::Run));
    fs::write(&path, &text).unwrap();
    assert_eq!(log.open_run(meta("r")).await.unwrap().lines, 3, "positive control");
    log.shutdown().await;
}

/// Whole in themselves, and still not what was there when the run ended.
#[tokio::test]
async fn a_closed_chain_that_was_removed_or_set_back_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("runs/r");
    let copy = dir.path().join("copy");
    let files = |from: &Path, to: &Path| {
        fs::create_dir_all(to).unwrap();
        for file in fs::read_dir(from).unwrap().flatten() {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    closed_chain(dir.path(), 3).await;
    files(&folder, &copy);
    closed_chain(dir.path(), 2).await;
    assert_eq!(verify_seals(dir.path()).unwrap(), [""; 0], "positive control");
    files(&copy, &folder);
    assert!(matches!(verify(dir.path(), Some("r")).unwrap(), Verdict::Intact { lines: 3, .. }));
    let named = verify_seals(dir.path()).unwrap();
    assert!(named.len() == 1 && named[0].contains("another hash"), "{named:?}");
    fs::remove_dir_all(&folder).unwrap();
    let named = verify_seals(dir.path()).unwrap();
    assert!(named.len() == 1 && named[0].contains("were removed"), "{named:?}");
}
