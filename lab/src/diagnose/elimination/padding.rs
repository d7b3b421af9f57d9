//! Padding of an epoch, and what other settings of the loader would give back.

use anyhow::Result;
use kiln_data::Packing;
use kiln_train::config::task::{Reads, traits_of};
use kiln_train::eval::Model;

use super::figures::{Figures, Padding};
use super::subject::Subject;
use super::verdict::{Found, Verdict, percent};
use crate::diagnose::data_stats::{DataStats, better};

/// Counts padding with the settings of the run and with others.
///
/// # Errors
/// If the token cache cannot be read.
pub(super) fn run<M: Model>(subject: &Subject<'_, M>, figures: &mut Figures) -> Result<Found> {
    if subject.init.data().is_some() {
        return Ok(Err("not for data of a program's own: the token caches of files are counted here".into()));
    }
    if subject.config.data.cache_limit.is_some() {
        let (row, text) = (traits_of(subject.config.task), &subject.config.data.text);
        let is_plain = row.reads == Reads::Text && row.classes.is_none() && !text.is_chat();
        let reason = match is_plain && text.packing != Packing::Sentences {
            true => "data.cache_limit packs rows in full: only the last one of a shard has padding",
            false => "data.cache_limit keeps a part of the token cache, whose lengths are counted here",
        };
        return Ok(Err(reason.into()));
    }
    let stats = DataStats::of(subject.config, &subject.data.vocabulary, &subject.cache_dir)?;

    let (now, better) = (stats.current().padding, better(&stats.batchings));
    figures.padding = Some(Padding {
        now,
        then: better.map_or(now, |better| better.padding),
        settings: better.map(|better| better.settings.clone()).unwrap_or_default(),
    });

    let verdict = Verdict::new("padding of an epoch", 100.0 * now, "%", "");
    Ok(Ok(vec![match better {
        Some(better) => {
            let words = format!("{} with {}", percent(better.padding), better.settings.join(" and "));
            Verdict { words, ..verdict }.against(100.0 * better.padding)
        }
        None => Verdict { words: "no setting of the loader lowers it by much".into(), ..verdict },
    }]))
}
