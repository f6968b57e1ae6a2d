//! Rewards from an external command.
//!
//! In: samples as JSON. Out: for each one a finite number, an abstention, or a failure with its reason; a failure is
//! never a number. The command runs in several processes, speaks JSON lines (`{"id": 1, "sample": {...}}` in,
//! `{"id": 1, "reward": 0.5}` out) and is supervised: a call that outlives its deadline, or a process that crashes or
//! talks out of turn, is a failed reward; the process is killed with all its children and replaced for the next call.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use thiserror::Error;

/// What became of one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A finite number.
    Value(f64),
    /// The command answered null: this reward has nothing to say about the sample.
    Abstained,
    /// No reward, and why. Counted, and left out of its group.
    Failed(String),
}

/// A command that cannot be used at all.
#[derive(Debug, Error)]
pub enum ExternError {
    /// The process could not be made.
    #[error("cannot start the reward `{command}`: {source}")]
    Spawn { command: String, source: std::io::Error },
    /// It ended at once.
    #[error("the reward `{command}` {ended} before it was asked anything{stderr}")]
    Died { command: String, ended: String, stderr: String },
}

impl ExternError {
    /// The slug of the diagnostic.
    pub fn code(&self) -> &'static str {
        "reward-not-started"
    }
}

/// How the command is run.
#[derive(Clone, Debug)]
pub struct Extern {
    /// Given to `sh -c`.
    pub command: String,
    pub workers: usize,
    /// For one call.
    pub deadline: Duration,
    /// Where it runs; the current directory if not given.
    pub dir: Option<PathBuf>,
    /// Rewards outside are failures.
    pub range: Option<(f64, f64)>,
}

/// Running workers.
pub struct Pool {
    settings: Extern,
    workers: Vec<Mutex<Option<Worker>>>,
    restarts: AtomicUsize,
}

/// Time in which a command that cannot run is expected to end by itself.
const GRACE: Duration = Duration::from_millis(150);

/// Bytes of a process's complaints that are kept.
const TAIL: usize = 600;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts all workers and makes sure that they live.
    pub fn start(settings: Extern) -> Result<Pool, ExternError> {
        let count = settings.workers.max(1);
        let workers: Result<Vec<_>, _> = (0..count).map(|_| Worker::start(&settings)).collect();
        let mut workers = workers?;
        let start = Instant::now();
        while start.elapsed() < GRACE {
            for worker in &mut workers {
                if let Some(status) = worker.ended() {
                    let (ended, stderr) = (ending(status), worker.complaint());
                    return Err(ExternError::Died { command: settings.command, ended, stderr });
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let workers = workers.into_iter().map(|w| Mutex::new(Some(w))).collect();
        Ok(Pool { settings, workers, restarts: AtomicUsize::new(0) })
    }

    /// How often a worker had to be replaced.
    pub fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Scores all samples; the outcomes come in the samples' order.
    pub fn score(&self, samples: &[Value]) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        let outcomes: Vec<Mutex<Option<Outcome>>> =
            samples.iter().map(|_| Mutex::new(None)).collect();
        let (next, outcomes_ref) = (&next, &outcomes);
        std::thread::scope(|scope| {
            for slot in self.workers.iter().take(samples.len()) {
                scope.spawn(move || {
                    let mut worker = lock(slot);
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let Some(sample) = samples.get(i) else { break };
                        *lock(&outcomes_ref[i]) = Some(self.call(&mut worker, i, sample));
                    }
                });
            }
        });
        let lost = || Outcome::Failed("the call was lost".into());
        outcomes
            .into_iter()
            .map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or_else(lost))
            .collect()
    }

    fn call(&self, slot: &mut Option<Worker>, id: usize, sample: &Value) -> Outcome {
        if slot.is_none() {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            match Worker::start(&self.settings) {
                Ok(worker) => *slot = Some(worker),
                Err(e) => return Outcome::Failed(e.to_string()),
            }
        }
        let Some(worker) = slot.as_mut() else { return Outcome::Failed("no worker".into()) };
        match worker.ask(id, sample, self.settings.deadline) {
            Ok(answer) => self.judge(&answer),
            Err(reason) => {
                // Dropping kills the process and everything that it started.
                *slot = None;
                Outcome::Failed(reason)
            }
        }
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        let value = match answer {
            Answer::NotFinite(text) => return Outcome::Failed(format!("the reward is {text}")),
            Answer::Message(value) => value,
        };
        if let Some(error) = value.get("error").filter(|e| !e.is_null()) {
            let text = error.as_str().map_or_else(|| error.to_string(), String::from);
            return Outcome::Failed(text);
        }
        match value.get("reward") {
            None => Outcome::Failed(format!(
                "the answer has no key `reward`: {}",
                shorten(&value.to_string())
            )),
            Some(Value::Null) => Outcome::Abstained,
            Some(reward) => match (reward.as_f64(), self.settings.range) {
                (Some(x), Some((low, high))) if !(low..=high).contains(&x) => {
                    Outcome::Failed(format!("the reward is {x}, outside {low}..{high}"))
                }
                (Some(x), _) if x.is_finite() => Outcome::Value(x),
                _ => Outcome::Failed(format!("the reward is {reward}, not a finite number")),
            },
        }
    }
}

enum Answer {
    Message(Value),
    /// Python writes NaN and Infinity where JSON has no such numbers.
    NotFinite(&'static str),
}

/// One process with the threads that serve its pipes.
struct Worker {
    child: Child,
    requests: Sender<String>,
    answers: Receiver<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once all that it wrote to its standard error has been read.
    silent: Receiver<()>,
}

impl Worker {
    fn start(settings: &Extern) -> Result<Worker, ExternError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&settings.command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that children of the command end with it and Ctrl-C does not reach it.
        command.process_group(0);
        if let Some(dir) = &settings.dir {
            command.current_dir(dir);
        }
        let spawn = |source| ExternError::Spawn { command: settings.command.clone(), source };
        let mut child = command.spawn().map_err(spawn)?;
        let (requests, to_write) = channel::<String>();
        let (to_read, answers) = channel();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let (speaking, silent) = channel::<()>();
        // Each thread ends when its pipe does, which is at the latest when the process group is killed.
        if let Some(mut pipe) = child.stdin.take() {
            std::thread::spawn(move || {
                while let Ok(line) = to_write.recv() {
                    if pipe.write_all(line.as_bytes()).and_then(|()| pipe.flush()).is_err() {
                        break;
                    }
                }
            });
        }
        if let Some(pipe) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(pipe);
                let mut line = Vec::new();
                while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    if to_read.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        break;
                    }
                    line.clear();
                }
            });
        }
        if let Some(mut pipe) = child.stderr.take() {
            let tail = stderr.clone();
            std::thread::spawn(move || {
                let _speaking = speaking;
                let mut piece = [0; 1024];
                while let Ok(n @ 1..) = pipe.read(&mut piece) {
                    let mut tail = lock(&tail);
                    tail.extend_from_slice(&piece[..n]);
                    let excess = tail.len().saturating_sub(TAIL);
                    tail.drain(..excess);
                }
            });
        }
        Ok(Worker { child, requests, answers, stderr, silent })
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends one sample and waits for its answer; an error means that the process cannot be used any more.
    fn ask(&mut self, id: usize, sample: &Value, deadline: Duration) -> Result<Answer, String> {
        let start = Instant::now();
        let line = json!({"id": id, "sample": sample}).to_string() + "\n";
        if self.requests.send(line).is_err() {
            return Err(self.crash());
        }
        loop {
            let left = deadline.saturating_sub(start.elapsed());
            match self.answers.recv_timeout(left) {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => return read_answer(&line, id),
                Err(RecvTimeoutError::Disconnected) => return Err(self.crash()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "no answer within {} s; the process was killed{}",
                        deadline.as_secs_f64(),
                        self.complaint()
                    ));
                }
            }
        }
    }

    fn crash(&mut self) -> String {
        // Its pipe is closed; give it a moment to be gone, so that its status can be told.
        let start = Instant::now();
        let mut status = self.ended();
        while status.is_none() && start.elapsed() < Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(5));
            status = self.ended();
        }
        let ended = status.map_or_else(|| "closed its output".into(), ending);
        format!("the process {ended}{}", self.complaint())
    }

    fn complaint(&self) -> String {
        // What it wrote last may still be on its way; what it started may hold the pipe for ever.
        let _ = self.silent.recv_timeout(Duration::from_millis(500));
        let tail = lock(&self.stderr);
        let text = String::from_utf8_lossy(&tail);
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!("; its last words: {text}") }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The group's number is the child's, and it is not given away while a member of the group lives.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process_group(group, Signal::KILL).ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn read_answer(line: &str, id: usize) -> Result<Answer, String> {
    let value: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(_) => {
            let compact: String = line.chars().filter(|c| !c.is_whitespace()).collect();
            let after = compact.split("\"reward\":").nth(1).unwrap_or("");
            let names = [("NaN", "NaN"), ("Infinity", "inf"), ("-Infinity", "-inf")];
            let found = names.iter().find(|(text, _)| after.starts_with(text));
            return match found {
                Some((_, shown)) if compact.contains(&format!("\"id\":{id}")) => {
                    Ok(Answer::NotFinite(shown))
                }
                _ => Err(format!(
                    "the process wrote {:?}, which is no answer; print other output to stderr",
                    shorten(line.trim())
                )),
            };
        }
    };
    match value.get("id").and_then(Value::as_u64) {
        Some(got) if got == id as u64 => Ok(Answer::Message(value)),
        _ => Err(format!("the process answered {}, not number {id}", shorten(line.trim()))),
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 80 {
        text.into()
    } else {
        text.chars().take(77).collect::<String>() + "..."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell loop that takes the id off each line and runs `body` with it.
    fn script(body: &str) -> String {
        format!(r#"while read -r line; do id=${{line#*:}}; id=${{id%%,*}}; {body}; done"#)
    }

    fn settings(command: String) -> Extern {
        Extern { command, workers: 3, deadline: Duration::from_secs(2), dir: None, range: None }
    }

    fn samples(names: &[&str]) -> Vec<Value> {
        names.iter().map(|n| json!({"completion": n})).collect()
    }

    fn gone(pid: &str) -> bool {
        // A killed process may stay as a zombie until its new parent looks.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |s| s.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')))
    }

    #[test]
    fn answers_come_in_the_order_of_the_samples() {
        let body = r#"case "$line" in *half*) r=0.5;; *none*) r=null;; *) r=1;; esac; echo "{\"id\":$id,\"reward\":$r}""#;
        let pool = Pool::start(settings(script(body))).unwrap();
        let names: Vec<&str> = ["half", "full", "none"].into_iter().cycle().take(30).collect();
        let got = pool.score(&samples(&names));
        let expected = [Outcome::Value(0.5), Outcome::Value(1.0), Outcome::Abstained];
        assert!(got.iter().enumerate().all(|(i, o)| *o == expected[i % 3]), "{got:?}");
        assert_eq!((pool.restarts(), pool.score(&[]).len()), (0, 0));
    }

    /// Case c82: a hang costs its own sample, and nothing of it stays alive.
    #[test]
    fn a_hanging_call_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let body = r#"case "$line" in *hang*) sleep 1000 & echo $! > child; echo $$ > parent; wait;; esac; echo "{\"id\":$id,\"reward\":1}""#;
        let deadline = Duration::from_millis(600);
        let pool = Pool::start(Extern {
            dir: Some(dir.path().into()),
            deadline,
            ..settings(script(body))
        })
        .unwrap();
        let start = Instant::now();
        let got = pool.score(&samples(&["ok", "hang", "ok"]));
        assert!(start.elapsed() < Duration::from_secs(4));
        assert_eq!((&got[0], &got[2]), (&Outcome::Value(1.0), &Outcome::Value(1.0)));
        assert_eq!(
            got[1],
            Outcome::Failed("no answer within 0.6 s; the process was killed".into())
        );
        std::thread::sleep(Duration::from_millis(50));
        for file in ["parent", "child"] {
            let pid = std::fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(gone(pid.trim()), "{file} lives");
        }
        let again = pool.score(&samples(&["ok", "ok", "ok", "ok", "ok", "ok"]));
        assert_eq!(again, vec![Outcome::Value(1.0); 6]);
    }

    /// Case c81: a failure is told, and is no number.
    #[test]
    fn a_crash_is_a_failed_reward_with_the_last_words() {
        let body = r#"case "$line" in *crash*) echo "ValueError: no number" >&2; exit 3;; *raise*) echo "{\"id\":$id,\"error\":\"cannot parse\"}";; *) echo "{\"id\":$id,\"reward\":1}";; esac"#;
        let pool = Pool::start(Extern { workers: 1, ..settings(script(body)) }).unwrap();
        let got = pool.score(&samples(&["raise", "crash", "ok", "ok"]));
        assert_eq!(got[0], Outcome::Failed("cannot parse".into()));
        let crashed = "the process ended with status 3; its last words: ValueError: no number";
        assert_eq!(got[1], Outcome::Failed(crashed.into()));
        assert_eq!(got[2..], [Outcome::Value(1.0), Outcome::Value(1.0)]);
        assert_eq!(pool.restarts(), 1);
    }

    /// Case c84: null abstains, NaN and infinity fail.
    #[test]
    fn numbers_that_are_none_fail() {
        let body =
            r#"r=${line#*completion\":\"}; r=${r%%\"*}; echo "{\"id\": $id, \"reward\": $r}""#;
        let one = Extern { workers: 1, range: Some((0.0, 1.0)), ..settings(script(body)) };
        let pool = Pool::start(one).unwrap();
        let got = pool.score(&samples(&[
            "1.0",
            "null",
            "NaN",
            "Infinity",
            "-Infinity",
            "true",
            "0.5",
            "2",
        ]));
        let failed = |why: &str| Outcome::Failed(why.into());
        assert_eq!(got[..2], [Outcome::Value(1.0), Outcome::Abstained]);
        assert_eq!(
            got[2..5],
            [
                failed("the reward is NaN"),
                failed("the reward is inf"),
                failed("the reward is -inf")
            ]
        );
        assert_eq!(got[5], failed("the reward is true, not a finite number"));
        assert_eq!(got[6..], [Outcome::Value(0.5), failed("the reward is 2, outside 0..1")]);
        assert_eq!(pool.restarts(), 0);
    }

    #[test]
    fn talking_out_of_turn_is_a_failure() {
        let body = r#"case "$line" in *chat*) echo "loading model";; *wrong*) id=77;; esac; echo "{\"id\":$id,\"reward\":1}""#;
        let pool = Pool::start(Extern { workers: 1, ..settings(script(body)) }).unwrap();
        let got = pool.score(&samples(&["chat", "wrong", "ok"]));
        let chat =
            "the process wrote \"loading model\", which is no answer; print other output to stderr";
        assert_eq!(got[0], Outcome::Failed(chat.into()));
        assert_eq!(
            got[1],
            Outcome::Failed(r#"the process answered {"id":77,"reward":1}, not number 1"#.into())
        );
        assert_eq!(got[2], Outcome::Value(1.0));
    }

    #[test]
    fn a_command_that_cannot_run_is_told_at_the_start() {
        let error = Pool::start(settings("no-such-reward-program".into())).err().unwrap();
        assert_eq!(error.code(), "reward-not-started");
        let text = error.to_string();
        let start = "the reward `no-such-reward-program` ended with status 127 before it was asked anything; its last words: ";
        assert!(text.starts_with(start) && text.contains("not found"), "{text}");
        let dir = Some(PathBuf::from("no/such/dir"));
        let error = Pool::start(Extern { dir, ..settings("true".into()) }).err().unwrap();
        assert!(error.to_string().starts_with("cannot start the reward `true`"), "{error}");
    }

    #[test]
    fn a_sample_larger_than_a_pipe_does_not_block() {
        let pool = Pool::start(Extern { workers: 1, ..settings("sleep 100".into()) }).unwrap();
        let pool = Pool {
            settings: Extern { deadline: Duration::from_millis(200), ..pool.settings.clone() },
            ..pool
        };
        let start = Instant::now();
        let got = pool.score(&[json!({"completion": "x".repeat(1 << 20)})]);
        assert!(
            matches!(&got[0], Outcome::Failed(why) if why.starts_with("no answer within 0.2 s")),
            "{got:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
