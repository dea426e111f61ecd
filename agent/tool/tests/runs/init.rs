//! What PID 1 of a run does.

use serde_json::json;

use super::bundle::Bundle;

fn sh(script: &str) -> Bundle {
    Bundle::under_init(&["sh", "-c", script])
}

/// The exit file of a run of `script` under init.
#[track_caller]
fn check(script: &str, code: u8) {
    let (output, exit) = sh(script).run();
    assert_eq!(exit, json!({"exitCode": code, "signal": null}), "`{script}` said `{output}`");
}

#[test]
fn the_exit_code_is_the_commands_own() {
    check("exit 0", 0);
    check("exit 7", 7);
    check("exit 255", 255);
}

#[test]
fn a_signal_that_ends_the_command_is_128_and_its_number() {
    check("kill -TERM $$", 143);
    check("kill -KILL $$", 137);
    check("kill -SEGV $$", 139);
}

#[test]
fn without_init_the_same_signal_is_lost() {
    let (_, exit) = Bundle::new(&["/usr/bin/sh", "-c", "kill -TERM $$; exit 3"], false).run();
    assert_eq!(exit, json!({"exitCode": 3, "signal": null}));
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_be_executed_126() {
    let (output, exit) = Bundle::under_init(&["no-such-program"]).run();
    assert_eq!(exit["exitCode"], 127);
    assert!(output.contains("`no-such-program` is not there"), "{output}");
    let (output, exit) = Bundle::under_init(&["/usr/lib"]).run();
    assert_eq!(exit["exitCode"], 126);
    assert!(output.contains("`/usr/lib` can't be executed"), "{output}");
}

#[test]
fn signals_from_outside_reach_the_whole_group() {
    let bundle =
        sh("trap 'wait; exit 9' USR1; (trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.02; \
                     done) & while :; do sleep 0.02; done");
    let mut shim = bundle.shim(&[]);
    shim.start();
    shim.wait_for("ready\n");
    bundle.kill("USR1");
    shim.finish();
    assert_eq!(bundle.exit()["exitCode"], 9);
    let output = shim.output();
    assert!(output.contains("child\n"), "{output}");
}

#[test]
fn a_stop_from_outside_ends_a_command_without_a_handler() {
    let bundle = Bundle::under_init(&["sleep", "60"]);
    let mut shim = bundle.shim(&[]);
    shim.start();
    bundle.kill("TERM");
    shim.finish();
    assert_eq!(bundle.exit(), json!({"exitCode": 143, "signal": null}));
}

const ORPHANS: &str = "for i in 1 2 3 4 5 6 7 8; do sh -c 'sleep 0.05 & exit'; done; sleep 0.4; \
                       grep -l '^State:.Z' /proc/[0-9]*/status | wc -l";

#[test]
fn orphans_are_collected() {
    let (output, _) = sh(ORPHANS).run();
    assert_eq!(output.trim(), "0");
    // The same without an init that collects: PID 1 execs a program that never waits.
    let bare = format!("({ORPHANS}; kill -9 -1) & exec sleep 2");
    let (output, _) = Bundle::new(&["/usr/bin/sh", "-c", &bare], false).run();
    assert_eq!(output.trim(), "8");
}

#[test]
fn processes_left_behind_end_with_the_command() {
    let started = std::time::Instant::now();
    check("sleep 30 & exit 4", 4);
    assert!(started.elapsed().as_secs() < 10);
}

#[test]
fn init_holds_its_stdio_and_nothing_else() {
    let (output, _) = sh("sleep 0.2; echo $(ls /proc/1/fd)").run();
    assert_eq!(output, "0 1 2\n");
}

#[test]
fn the_command_starts_with_no_signal_blocked_or_ignored() {
    let (output, _) = sh("grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2 | tr '\\n' ' '").run();
    let masks: Vec<_> =
        output.split_whitespace().map(|mask| u64::from_str_radix(mask, 16).unwrap()).collect();
    // 32 and 33 belong to the C library; what started the tests may have left them ignored.
    let named = !(0b11 << 31);
    assert_eq!(masks.iter().map(|mask| mask & named).collect::<Vec<_>>(), [0, 0], "{output}");
}
