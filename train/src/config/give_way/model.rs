//! The shape of the Transformer: widths, heads, tied matrices.

use kiln_model::{Architecture, Positions, TieEmbeddings};

use super::Follower;

impl Follower<'_> {
    pub(super) fn model(&mut self) {
        self.heads();
        self.ties();
    }

    /// Heads divide the width, and heads of keys and values divide the heads.
    fn heads(&mut self) {
        let model = &self.config.model;
        let (d_model, n_heads, n_kv_heads) = (model.d_model, model.n_heads, model.n_kv_heads);
        if d_model == 0 || n_heads == 0 || model.head_dim > 0 {
            return;
        }
        let rotates = model.positions == Positions::Rotary;
        let divides = |heads: usize, kv_heads: usize| {
            d_model.is_multiple_of(heads)
                && heads.is_multiple_of(if kv_heads == 0 { heads } else { kv_heads })
                && (!rotates || (d_model / heads).is_multiple_of(2))
        };

        if !divides(n_heads, 0) && self.is_default("model.d_model") {
            // Even, for sines.
            let unit = n_heads * if rotates || !n_heads.is_multiple_of(2) { 2 } else { 1 };
            let wider = d_model.next_multiple_of(unit);
            let because = format!("model.n_heads = {n_heads}");
            self.follow("model.d_model", |c| &mut c.model.d_model, wider, &because);
        } else if !divides(n_heads, 0) || (self.is_set("model.n_kv_heads") && !divides(n_heads, n_kv_heads)) {
            let kv_heads = if self.is_set("model.n_kv_heads") { n_kv_heads } else { 0 };
            let fitting = (1..=d_model.min(4096)).filter(|heads| divides(*heads, kv_heads));
            if let Some(nearest) = fitting.min_by_key(|heads| heads.abs_diff(n_heads)) {
                let because = format!("it has to divide model.d_model = {d_model}");
                self.follow("model.n_heads", |c| &mut c.model.n_heads, nearest, &because);
            }
        }

        let n_heads = self.config.model.n_heads;
        if n_kv_heads > 0 && !n_heads.is_multiple_of(n_kv_heads) {
            let largest = (1..=n_kv_heads).rev().find(|kv_heads| n_heads.is_multiple_of(*kv_heads)).unwrap_or(1);
            let because = format!("it has to divide model.n_heads = {n_heads}");
            self.follow("model.n_kv_heads", |c| &mut c.model.n_kv_heads, largest, &because);
        }
        let sines = self.config.model.positions.are_sines();
        if sines && !self.config.model.d_model.is_multiple_of(2) {
            let because = "model.d_model is odd, and sines need pairs of features";
            self.follow("model.positions", |c| &mut c.model.positions, Positions::Learned, because);
        }
    }

    /// Matrices are shared only by sides with one vocabulary.
    fn ties(&mut self) {
        let (model, tokenizer) = (&self.config.model, &self.config.tokenizer);
        if model.architecture != Architecture::EncoderDecoder || !model.tie_embeddings.ties_inputs() {
            return;
        }
        let (source, target) = (model.source_vocab_size, model.target_vocab_size);
        let two_vocabularies =
            if tokenizer.path.is_some() { tokenizer.target_path.is_some() } else { !tokenizer.joint };
        if two_vocabularies || (source > 0 && target > 0 && source != target) {
            let because = "source and target have vocabularies of their own";
            let apart = if model.tie_embeddings.ties_output() { TieEmbeddings::Output } else { TieEmbeddings::None };
            self.follow("model.tie_embeddings", |c| &mut c.model.tie_embeddings, apart, because);
            if self.is_set("model.tie_embeddings") && tokenizer_is_trained(self) {
                let because = "model.tie_embeddings = \"three_way\" shares one vocabulary";
                self.follow("tokenizer.joint", |c| &mut c.tokenizer.joint, true, because);
            }
            return;
        }

        // One vocabulary has one size.
        if source > target {
            let because = format!("model.source_vocab_size = {source}, and both sides share one matrix");
            self.follow("model.target_vocab_size", |c| &mut c.model.target_vocab_size, source, &because);
        } else if target > source {
            let because = format!("model.target_vocab_size = {target}, and both sides share one matrix");
            self.follow("model.source_vocab_size", |c| &mut c.model.source_vocab_size, target, &because);
        }
    }
}

fn tokenizer_is_trained(follower: &Follower<'_>) -> bool {
    follower.config.tokenizer.path.is_none()
}
