//! The tokenizers of a model folder, as its run will have them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::{FolderTokenizer, M2m100Files, MarianFiles};
use kiln_interchange::hugging_face::{Folder, FolderError, SENTENCEPIECE_FILE, TOKENIZER_FILE, TokenizerFile};
use kiln_metrics::logging::print::stderr_line;
use kiln_model::hf::TokenIds;
use kiln_train::checkpoint::StoredFile;
use kiln_train::config::Task;
use kiln_train::config::task::{Reads, traits_of};
use serde_json::Value;

/// Special tokens by their roles (`mask_token`).
pub(super) type Roles = BTreeMap<&'static str, String>;

/// The tokenizers of a model folder.
pub(super) struct Tokenizers {
    /// The tokenizer, or the sources' if the targets have another one.
    pub(super) first: TokenizerFile,
    /// The file that errors name.
    pub(super) path: PathBuf,
    /// What the run stores of them.
    pub(super) files: Vec<StoredFile>,
    /// The ids that the tokenizer puts in front of and behind a text; `None` if it does not say.
    pub(super) around: Option<(Vec<u32>, Vec<u32>)>,
    /// The special token of each role, as the files of the folder say.
    pub(super) roles: Roles,
    /// The special tokens of templates with names of their own (`image_token`).
    pub(super) named: BTreeMap<String, String>,
    /// Whether programs pad in front of a text, unless `tokenizer_config.json` says otherwise.
    pub(super) pads_left: bool,
    /// Whether each language has its own tokenizer.
    pub(super) of_languages: bool,
    /// One more than the largest id.
    pub(super) n_ids: usize,
}

impl Tokenizers {
    /// Reads the `tokenizer.json` that the user names. Otherwise it reads the SentencePiece models and the vocabulary of a
    /// folder as OPUS-MT or M2M-100 publish it, or else the folder's `tokenizer.json` with what the files next to it say. The
    /// embedding has `rows` rows.
    pub(super) fn read(
        dir: &Path,
        named: Option<PathBuf>,
        source: &Folder,
        task: Task,
        tokens: &TokenIds,
        rows: usize,
    ) -> Result<Self> {
        if named.is_none() && traits_of(task).reads == Reads::Pairs {
            let roles = roles_in(&source.tokenizer_config()?);
            if let Some(files) = MarianFiles::read(dir)? {
                let read = Self::of_languages(files, tokens, dir.join(MarianFiles::VOCABULARY))?;
                return Ok(Self { roles, ..read });
            }
            if let Some(files) = M2m100Files::read(dir)? {
                let read = Self::of_many_languages(files, tokens, dir.join(M2m100Files::VOCABULARY))?;
                return Ok(Self { roles, ..read });
            }
        }

        let path = named.or_else(|| source.tokenizer()).ok_or_else(|| no_tokenizer(dir))?;
        let FolderTokenizer { json, roles, named, pads_left, notes, .. } = FolderTokenizer::read(&path, rows)?;
        notes.iter().for_each(|note| stderr_line!("note: {note}"));
        let bytes = json.into_bytes();
        let first = TokenizerFile::parse(&bytes, &path)?;
        let around = first.around().with_context(|| path.display().to_string())?;
        let files = vec![StoredFile { name: TOKENIZER_FILE.to_owned(), bytes }];
        Ok(Self { n_ids: first.n_ids(), first, path, files, around, roles, named, pads_left, of_languages: false })
    }

    fn of_languages(files: MarianFiles, tokens: &TokenIds, path: PathBuf) -> Result<Self, FolderError> {
        let first = TokenizerFile::parse(files.source_json.as_bytes(), &path)?;
        let target = TokenizerFile::parse(files.target_json.as_bytes(), &path)?;
        let stored = |(name, bytes): (&str, Vec<u8>)| StoredFile { name: name.to_owned(), bytes };
        Ok(Self {
            n_ids: first.n_ids().max(target.n_ids()),
            first,
            path,
            files: files.into_files().map(stored).into(),
            around: Some((Vec::new(), tokens.eos.into_iter().collect())), // as `MarianTokenizer` does
            roles: Roles::new(),
            named: BTreeMap::new(),
            pads_left: false,
            of_languages: true,
        })
    }

    fn of_many_languages(files: M2m100Files, tokens: &TokenIds, path: PathBuf) -> Result<Self, FolderError> {
        let M2m100Files { json, model, source_language } = files;
        let first = TokenizerFile::parse(json.as_bytes(), &path)?;
        let before = source_language.and_then(|token| first.ids().get(token.as_str()).map(|id| *id as u32));
        let stored = |name: &str, bytes| StoredFile { name: name.to_owned(), bytes };
        let files = vec![stored(TOKENIZER_FILE, json.into_bytes()), stored(SENTENCEPIECE_FILE, model)];
        let around = Some((before.into_iter().collect(), tokens.eos.into_iter().collect())); // as `M2M100Tokenizer` does
        Ok(Self {
            n_ids: first.n_ids(),
            first,
            path,
            files,
            around,
            roles: Roles::new(),
            named: BTreeMap::new(),
            pads_left: false,
            of_languages: false,
        })
    }

    /// Refuses tokenizers with more ids than the embedding has rows. More rows than ids are usual, because sizes are rounded
    /// up.
    pub(super) fn check_size(&self, rows: usize) -> Result<(), FolderError> {
        let n = self.n_ids;
        if n > rows {
            let reason = format!(
                "has ids up to {}, but the embedding of the model has {rows} rows; it belongs to another model",
                n - 1
            );
            return Err(FolderError::BadFile { path: self.path.clone(), reason });
        }
        if n < rows {
            stderr_line!(
                "note: the embedding has {rows} rows and the tokenizer {n} ids; the other rows are kept but never used"
            );
        }
        Ok(())
    }
}

/// Returns the roles that a `tokenizer_config.json` names. Translators need no others.
fn roles_in(config: &Value) -> Roles {
    let token = |role: &'static str| {
        let value = &config[role];
        Some((role, value.as_str().or(value["content"].as_str())?.to_owned()))
    };
    ["pad_token", "bos_token", "eos_token", "unk_token"].into_iter().filter_map(token).collect()
}

fn no_tokenizer(dir: &Path) -> FolderError {
    FolderError::NotAModel {
        path: dir.to_path_buf(),
        reason: format!(
            "has no {TOKENIZER_FILE}; name one with --tokenizer, or make it with transformers: load the folder with \
             AutoTokenizer and save it with save_pretrained. A Marian model may have source.spm, target.spm and vocab.json instead, \
             and M2M-100 sentencepiece.bpe.model and vocab.json"
        ),
    }
}
