//! A text that grows turn by turn: keys and values of its tokens are kept from turn to turn.

use std::io;

use kiln_model::DecoderCache;

use super::sequences::{Begun, Texts};
use super::{Continuation, GenerateError, TextGenerator};

/// Answers the turns of a conversation. Each answer computes only the tokens behind the beginning that the conversation
/// shares with the turn before; the text is the same as without memory of that turn.
#[derive(Debug)]
pub struct Conversation {
    generator: TextGenerator,
    /// Keys and values of `ids`, behind a learned prompt if the model has one.
    cache: Option<DecoderCache>,
    ids: Vec<u32>,
    n_computed: u64,
}

impl Conversation {
    /// Begins without any tokens.
    pub fn new(generator: TextGenerator) -> Self {
        Self { generator, cache: None, ids: Vec::new(), n_computed: 0 }
    }

    /// Returns the number of tokens that the model has computed in all turns: read, or written and followed by another.
    pub fn n_computed(&self) -> u64 {
        self.n_computed
    }

    /// Continues the whole conversation in tokens, as [`TextGenerator::stream_ids`] does. Any ids will do: where they differ
    /// from the turn before, they are computed.
    ///
    /// # Errors
    /// As [`TextGenerator::stream_ids`]. The conversation can go on afterwards.
    pub fn answer(
        &mut self,
        ids: Vec<u32>,
        turn: u64,
        write: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Continuation, GenerateError> {
        let Self { generator, cache, .. } = self;
        let row = generator.row(ids, turn as usize + 1)?;
        let _precision = generator.precision();
        let (prompt, model) = (generator.prompts(&[&row])?, &generator.model);
        let same = self.ids.iter().zip(&row.ids).take_while(|(before, now)| before == now).count();
        // The logits after the last token are computed in any case.
        let keep = same.min(row.ids.len() - 1);
        let begun = match cache.take().filter(|_| keep > 0) {
            Some(cache) => Texts::resume(model, cache, &prompt, keep, row.limit),
            None => Texts::begin(model, &prompt, vec![row.ids.len()], vec![row.limit]),
        };

        let Begun { sequences: mut texts, logits, limits } = begun;
        // Beams end as several texts.
        let before = (generator.config.beam_size > 1).then(|| texts.cache().clone());
        let begun = Begun { sequences: &mut texts, logits, limits };
        let found = generator.write_texts(begun, &[&row], &[turn], &mut |_, piece| Ok(write(piece)?))?;
        let (found, tokens) = found.into_iter().next().expect("one row");

        let cache = before.unwrap_or_else(|| texts.cache().clone());
        self.n_computed += texts.n_computed as u64;
        self.ids = [row.ids, tokens].concat();
        self.ids.truncate(cache.len() - model.config().prompt_tokens);
        self.cache = Some(cache);
        Ok(found)
    }
}
