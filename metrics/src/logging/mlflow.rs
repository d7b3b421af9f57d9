//! MLflow, by its REST interface (version 2.0, which MLflow 2 and 3 serve): the metrics of each line in one request.
//!
//! MLflow's own variables choose the server: `MLFLOW_TRACKING_URI` (`http://` only) and `MLFLOW_EXPERIMENT_NAME`. A server
//! that does not answer is named once; the metrics wait for the next attempt, and `metrics.jsonl` has them in any case.
//! A password in the address travels in the header of each request, and is neither printed nor written.

mod address;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use kiln_data::files::read_file;
use kiln_data::files::replace::replace_file;
use kiln_data::terminal::in_one_line;
use serde_json::{Value, json};
use ureq::Agent;

use self::address::Address;
use super::{Record, Sink, unix_secs};

/// The file of the run folder that names the run on the server, so that a resumed run goes on there.
const FILE: &str = "mlflow.json";
/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Least time between two requests for lines of metrics: short steps must not flood the server.
const BETWEEN: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a server.
const RETRY: Duration = Duration::from_secs(30);
/// Metrics that wait for a server; the oldest go first.
const MOST_WAITING: usize = 20_000;
/// Limits of one request, by MLflow's documentation of `runs/log-batch`.
const METRICS_PER_REQUEST: usize = 1000;
const PARAMS_PER_REQUEST: usize = 100;
const PARAM_LENGTH: usize = 500;
/// Bytes of an answer that are read.
const ANSWER_BYTES: u64 = 1 << 20;

/// The experiment of runs without `MLFLOW_EXPERIMENT_NAME`.
const EXPERIMENT: &str = "kiln";

/// The sink to a server.
pub(super) struct Mlflow {
    agent: Agent,
    /// The server.
    address: Address,
    experiment: String,
    /// Name of the run, and its folder.
    name: String,
    run_dir: PathBuf,
    /// The configuration, flat.
    params: Vec<(String, String)>,
    tags: Vec<(String, String)>,
    run_id: Option<String>,
    waiting: VecDeque<Value>,
    retry_at: Option<Instant>,
    sent_at: Option<Instant>,
    is_known: bool,
    trouble: Option<String>,
}

impl Mlflow {
    /// Returns the sink that the environment asks for, and what is wrong with what it asks for.
    pub(super) fn from_environment(run_dir: &Path, config: &Value) -> Result<Option<Self>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(uri) = variable("MLFLOW_TRACKING_URI") else { return Ok(None) };
        Self::new(&uri, variable("MLFLOW_EXPERIMENT_NAME"), run_dir, config).map(Some)
    }

    /// # Errors
    /// If the address is not one of a server that can be reached without TLS.
    fn new(uri: &str, experiment: Option<String>, run_dir: &Path, config: &Value) -> Result<Self> {
        let address = Address::parse(uri)?;
        let settings = Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).proxy(None);
        // Whoever answers may not choose who else gets the metrics and the password.
        let settings = settings.max_redirects(0);
        let name = run_dir.file_name().unwrap_or(run_dir.as_os_str()).to_string_lossy().into_owned();
        let mut params = Vec::new();
        flatten("", config, &mut |name, value| params.push((name, shortened(value))));
        Ok(Self {
            agent: settings.build().into(),
            address,
            experiment: experiment.unwrap_or_else(|| EXPERIMENT.into()),
            name,
            run_dir: run_dir.to_path_buf(),
            params,
            tags: Vec::new(),
            run_id: None,
            waiting: VecDeque::new(),
            retry_at: None,
            sent_at: None,
            is_known: false,
            trouble: None,
        })
    }

    /// Sends what waits, unless an attempt has just failed.
    fn send(&mut self, is_last: bool) {
        if !is_last && self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        if let Err(error) = self.try_send() {
            self.retry_at = Some(Instant::now() + RETRY);
            if !std::mem::replace(&mut self.is_known, true) {
                self.trouble = Some(format!(
                    "MLflow at {} did not take the metrics: {}; training goes on, metrics.jsonl has them, and Kiln tries \
                     again every {} s",
                    self.address.uri(),
                    self.address.without_secrets(&in_one_line(&format!("{error:#}"))),
                    RETRY.as_secs()
                ));
            }
        } else {
            (self.retry_at, self.sent_at) = (None, Some(Instant::now()));
        }
    }

    fn try_send(&mut self) -> Result<()> {
        let run_id = match &self.run_id {
            Some(run_id) => run_id.clone(),
            None => {
                let run_id = self.begin_run()?;
                self.run_id = Some(run_id.clone());
                run_id
            }
        };
        while !self.waiting.is_empty() {
            let n = self.waiting.len().min(METRICS_PER_REQUEST);
            let metrics: Vec<&Value> = self.waiting.iter().take(n).collect();
            self.post("runs/log-batch", &json!({ "run_id": run_id, "metrics": metrics }))?;
            self.waiting.drain(..n);
        }
        Ok(())
    }

    /// Continues the run of this folder, or creates one.
    fn begin_run(&self) -> Result<String> {
        let file = self.run_dir.join(FILE);
        let tags = self.tags.iter().map(|(key, value)| json!({ "key": key, "value": value }));
        let tags: Vec<_> = tags.collect();
        let earlier = read_file(&file).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let of_this_server = |earlier: &Value| earlier["uri"].as_str().is_some_and(|uri| self.address.is_at(uri));
        if let Some(run_id) = earlier.filter(of_this_server).and_then(|it| text(&it["run_id"])) {
            let going_on = json!({ "run_id": run_id, "status": "RUNNING" });
            if self.post("runs/update", &going_on).is_ok() {
                self.post("runs/log-batch", &json!({ "run_id": run_id, "tags": tags }))?;
                // Earlier versions wrote the address with its password.
                self.record(&run_id)?;
                return Ok(run_id);
            }
        }

        let experiment_id = self.experiment_id()?;
        let run = json!({
            "experiment_id": experiment_id, "run_name": self.name, "start_time": millis(), "tags": tags,
        });
        let created = self.post("runs/create", &run)?;
        let run_id = text(&created["run"]["info"]["run_id"]).context("its answer to runs/create names no run")?;
        for params in self.params.chunks(PARAMS_PER_REQUEST) {
            let params = params.iter().map(|(key, value)| json!({ "key": key, "value": value }));
            self.post("runs/log-batch", &json!({ "run_id": run_id, "params": params.collect::<Vec<_>>() }))?;
        }
        self.record(&run_id)?;
        Ok(run_id)
    }

    /// Writes where the run is.
    fn record(&self, run_id: &str) -> Result<()> {
        let record = json!({ "uri": self.address.uri(), "experiment": self.experiment, "run_id": run_id });
        replace_file(&self.run_dir.join(FILE), record.to_string().as_bytes())?;
        Ok(())
    }

    fn experiment_id(&self) -> Result<String> {
        let name = json!({ "name": self.experiment });
        let created = self.post("experiments/create", &name);
        if let Some(id) = created.as_ref().ok().and_then(|created| text(&created["experiment_id"])) {
            return Ok(id);
        }
        // It exists, as a rule.
        let url = format!("{}/api/2.0/mlflow/experiments/get-by-name", self.address.uri());
        let mut request = self.agent.get(url).query("experiment_name", &self.experiment);
        if let Some(credentials) = self.address.credentials() {
            request = request.header("Authorization", credentials);
        }
        let answer = answered(request.call())?;
        let id = text(&answer["experiment"]["experiment_id"]);
        id.with_context(|| format!("the experiment {:?} can neither be created nor found", self.experiment))
    }

    fn post(&self, what: &str, body: &Value) -> Result<Value> {
        let mut request = self.agent.post(format!("{}/api/2.0/mlflow/{what}", self.address.uri()));
        if let Some(credentials) = self.address.credentials() {
            request = request.header("Authorization", credentials);
        }
        answered(request.content_type("application/json").send(body.to_string())).with_context(|| what.to_owned())
    }

    /// Keeps the numbers of a record for the next request, under the names of their fields.
    fn keep(&mut self, prefix: &str, step: u64, fields: &Value, leave_out: &[&str]) {
        let timestamp = millis();
        flatten(prefix, fields, &mut |name, value| {
            if let Some(value) = value.as_f64().filter(|_| !leave_out.contains(&name.as_str())) {
                let metric = json!({ "key": name, "value": value, "timestamp": timestamp, "step": step });
                self.waiting.push_back(metric);
            }
        });
        let excess = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..excess);
    }
}

impl Sink for Mlflow {
    fn write(&mut self, record: &Record<'_>) -> Result<()> {
        match record {
            Record::Start(start) => {
                let device = format!("{} x {}", start.devices, start.device);
                self.tags = vec![("kiln.version".into(), start.kiln.clone()), ("kiln.device".into(), device)];
            }
            Record::Step(step) => self.keep("", step.step, &serde_json::to_value(step)?, &["step", "updates"]),
            Record::Window(window) => {
                // The steps have these, each its own.
                let of_steps = ["step", "loss", "nll", "grad_norm", "lr", "loss_scale"];
                self.keep("", window.step, &serde_json::to_value(window)?, &of_steps);
                if self.sent_at.is_none_or(|at| at.elapsed() >= BETWEEN) {
                    self.send(false);
                }
            }

            Record::Validation(validation) => {
                self.keep("validation.", validation.step, &serde_json::to_value(validation)?, &["validation.step"]);
                self.send(false);
            }
            Record::End(run) => {
                self.send(true);
                let status = if run.outcome == "stopped" { "KILLED" } else { "FINISHED" };
                if let (Some(run_id), None) = (&self.run_id, self.retry_at) {
                    let over = json!({ "run_id": run_id, "status": status, "end_time": millis() });
                    // The metrics have arrived; the state of the run is a courtesy.
                    let _ = self.post("runs/update", &over);
                }
            }
            Record::Sample(_) | Record::Note(_) | Record::Preparing(..) | Record::Begin(_) | Record::Finished => {}
        }
        Ok(())
    }

    fn trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }
}

/// Returns the JSON of an answer, or why there is none.
fn answered(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value> {
    let mut response = response.map_err(|error| anyhow!("{error}"))?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
    let body = body.map_err(|error| anyhow!("its answer cannot be read: {error}"))?;
    let answer = serde_json::from_str::<Value>(&body).unwrap_or_default();
    if (300..400).contains(&status) {
        let target = response.headers().get("location").and_then(|target| target.to_str().ok()).unwrap_or("no address");
        bail!(
            "status {status}: it sends requests on to {}, which Kiln does not follow; set MLFLOW_TRACKING_URI to the \
             address of the server itself",
            target.chars().take(200).collect::<String>()
        );
    }
    if !(200..300).contains(&status) {
        let message = text(&answer["message"]).unwrap_or(body);
        bail!("status {status}: {}", message.chars().take(200).collect::<String>());
    }
    Ok(answer)
}

/// Calls `f` with each value inside `value` and its path, `a.b`.
fn flatten(prefix: &str, value: &Value, f: &mut impl FnMut(String, &Value)) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        let name = format!("{prefix}{key}");
        if value.is_object() { flatten(&format!("{name}."), value, f) } else { f(name, value) }
    }
}

fn shortened(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.chars().take(PARAM_LENGTH).collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn millis() -> u64 {
    (1e3 * unix_secs()) as u64
}

#[cfg(test)]
mod tests;
