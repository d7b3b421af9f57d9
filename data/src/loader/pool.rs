//! Persistent worker threads behind bounded channels.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::batch::EpochPlan;
use crate::error::{Error, Result};
use crate::host_batch::HostBatch;
use crate::jobs;
use crate::sampler::Order;
use crate::source::{BatchSource, BatchWorker};

/// Work for a thread.
pub(super) enum Job {
    /// Plan the batches of an epoch. The first `head` complete a group of `group_size` that the epoch before has begun.
    Plan { epoch: u64, order: Order, group_size: usize, head: usize },
    /// Make a batch of a plan.
    Batch { number: u64, plan: Arc<EpochPlan>, index: usize, buffer: HostBatch },
}

/// The result of a job.
pub(super) enum Done {
    Plan { epoch: u64, plan: Result<EpochPlan> },
    Batch { number: u64, batch: Result<HostBatch> },
}

/// Does jobs on its thread. Asks the source for a [`BatchWorker`] at the first batch.
pub(super) struct Worker {
    source: Arc<dyn BatchSource>,
    batches: Option<Box<dyn BatchWorker>>,
}

impl Worker {
    pub(super) fn new(source: Arc<dyn BatchSource>) -> Self {
        Self { source, batches: None }
    }

    /// Does a job. A panic becomes an error with its message.
    pub(super) fn run(&mut self, job: Job) -> Done {
        match job {
            Job::Plan { epoch, order, group_size, head } => {
                let plan = || {
                    let mut plan = self.source.plan_for_steps(order, group_size);
                    plan.group_shapes(group_size, head, order);
                    plan
                };
                let plan = || jobs::timed("plan", plan);
                let plan = catch_unwind(AssertUnwindSafe(plan)).map_err(Error::from_panic);
                Done::Plan { epoch, plan }
            }
            Job::Batch { number, plan, index, mut buffer } => {
                let fill = || {
                    let worker = self.batches.get_or_insert_with(|| self.source.clone().worker());
                    worker.fill(&plan, index, &mut buffer)
                };
                let filled = catch_unwind(AssertUnwindSafe(|| jobs::timed("batch", fill)))
                    .unwrap_or_else(|panic| Err(Error::from_panic(panic)));
                Done::Batch { number, batch: filled.map(|()| buffer) }
            }
        }
    }
}

/// Threads that do jobs. Dropping the pool ends and joins them, after the running jobs.
pub(super) struct Pool {
    /// `None` once the pool is closing.
    jobs: Option<Sender<Job>>,
    results: Receiver<Done>,
    closing: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads. The caller must keep at most `max_jobs` jobs in flight: then neither side ever waits for
    /// room in a channel, so a deadlock is impossible.
    pub(super) fn start(source: &Arc<dyn BatchSource>, num_workers: usize, max_jobs: usize) -> Result<Self> {
        let (jobs, todo) = bounded::<Job>(max_jobs);
        let (done, results) = bounded::<Done>(max_jobs);
        let mut pool =
            Self { jobs: Some(jobs), results, closing: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        for i in 0..num_workers {
            let (todo, done, closing) = (todo.clone(), done.clone(), pool.closing.clone());
            let mut worker = Worker::new(source.clone());
            let work = move || {
                for job in todo {
                    if closing.load(Ordering::Relaxed) || done.send(worker.run(job)).is_err() {
                        break;
                    }
                }
            };
            let thread = thread::Builder::new().name(format!("kiln-loader-{i}")).spawn(work).map_err(|e| {
                Error::Invalid(format!("cannot start loader thread {i} ({e}): lower loader.num_workers"))
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn send(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("open until dropped");
        jobs.send(job).expect("workers live as long as the pool");
    }

    /// Waits for the next result of any job.
    pub(super) fn receive(&self) -> Done {
        self.results.recv().expect("workers live as long as the pool")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // Panics of jobs are caught, so there is nothing left to report.
            let _ = thread.join();
        }
    }
}
