//! Parallel work on the blocks of a corpus, with results in order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crossbeam_channel::bounded;

use crate::error::{Error, Result};
use crate::reorder::Reorder;

/// Reads the blocks of `corpus` on one thread and maps them on `num_threads` threads, each with its own state from
/// `init`. Passes the results to `sink` on the calling thread, in the order of the corpus. Memory is bounded to a few
/// blocks per thread. Stops at the first error, in the order of the corpus, and returns it.
pub(crate) fn for_each_block<B: Send, S, T: Send>(
    corpus: impl Iterator<Item = Result<B>> + Send,
    num_threads: usize,
    init: impl Fn() -> S + Sync,
    map: impl Fn(&mut S, B) -> Result<T> + Sync,
    mut sink: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let num_threads = num_threads.max(1);
    thread::scope(|scope| {
        // Tickets bound the blocks in flight: a slow block must not let the others pile up behind it.
        let in_flight = 4 * num_threads;
        let (ticket_sender, tickets) = bounded::<()>(in_flight);
        let (block_sender, blocks) = bounded::<(u64, Result<B>)>(in_flight);
        let (result_sender, results) = bounded::<(u64, Result<T>)>(in_flight);
        for _ in 0..in_flight {
            ticket_sender.send(()).expect("the channel has room for every ticket");
        }

        // Read.
        scope.spawn(move || {
            for (number, block) in (0..).zip(corpus) {
                // Either call fails only when the other side stopped after an error.
                if tickets.recv().is_err() || block_sender.send((number, block)).is_err() {
                    break;
                }
            }
        });

        // Map.
        for _ in 0..num_threads {
            let (blocks, result_sender, init, map) = (blocks.clone(), result_sender.clone(), &init, &map);
            scope.spawn(move || {
                let mut state = None;
                for (number, block) in blocks {
                    let work = AssertUnwindSafe(|| map(state.get_or_insert_with(init), block?));
                    let result = catch_unwind(work).unwrap_or_else(|panic| Err(Error::from_panic(panic)));
                    if result_sender.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop((blocks, result_sender));

        // Collect in order.
        let mut reorder = Reorder::new(0);
        for (number, result) in results {
            reorder.insert(number, result);
            while let Some(result) = reorder.pop() {
                sink(result?)?;
                // Fails when the reader is done.
                let _ = ticket_sender.send(());
            }
        }
        Ok(())
    })
}
