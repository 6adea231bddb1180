"""Text to token ids and back, over the `tokenizers` library."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from paxkv.detokenizer import DetokenizerStream
from paxkv.gguf_tokenizer import read_gguf_tokenizer
from paxkv.models.json_file import read_json
from paxkv.token_bytes import byte_rules

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILES = "vocab.json", "merges.txt"  # byte-level BPE in its older form


class Tokenizer:
    """A model's tokenizer.

    Example:
      tokenizer = Tokenizer.load("path/to/model")
      ids = tokenizer.encode("The capital of France is")
      text = tokenizer.decode(ids)
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        prepends_bos: bool = False,
    ):
        """Wraps a tokenizer of the library.

        Args:
          prepends_bos: `encode` puts `bos_token_id` first if `backend` does not.

        Raises:
          ValueError: the bytes of its tokens cannot be told from its decoder.
        """
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self._first_id = bos_token_id if prepends_bos else None
        self._rules = byte_rules(backend)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes_of: dict[int, bytes] = {}
        ids = backend.get_vocab(with_added_tokens=True).values()
        self.vocab_size = 1 + max(ids)  # a model's V may be padded beyond it

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads a directory with `tokenizer.json`, that file itself, or a GGUF file.

        A directory may instead hold `vocab.json` and `merges.txt`. Token ids of BOS and
        EOS come from the JSON files beside it.

        Raises:
          FileNotFoundError: nothing of the kind is there.
          ValueError: a file is damaged, or of a kind that is not supported.
        """
        path = Path(path)
        if path.is_file() and path.suffix != ".json":
            backend, ids = read_gguf_tokenizer(path)
            return cls(backend, bos_token_id=ids.bos, eos_token_ids=ids.eos)
        directory = path.parent if path.is_file() else path
        file = path if path.is_file() else directory / TOKENIZER_FILE
        settings = _read_settings(directory)
        try:
            backend = _read_backend(file)
            return cls(
                backend,
                bos_token_id=_token_id(backend, settings.get("bos_token")),
                eos_token_ids=_eos_ids(backend, settings),
                prepends_bos=bool(settings.get("add_bos_token")),
            )
        except ValueError as error:
            raise ValueError(f"the tokenizer of {directory}: {error}") from error

    @property
    def strips_first_space(self) -> bool:
        """Whether a text's first space is not the text's (SentencePiece's Llama 2)."""
        return self._rules.strips_first_space

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with BOS first where the model was trained so.

        Raises:
          ValueError: `text` holds half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text cannot be encoded as UTF-8 ({error}); remove the lone surrogate."
            ) from error
        ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        first = self._first_id if add_special_tokens else None
        return ids if first is None or ids[:1] == [first] else [first, *ids]

    def decode(
        self,
        ids: Iterable[int],
        skip_special_tokens: bool = True,
        *,
        continues_text: bool = False,
    ) -> str:
        """The text of ids; invalid UTF-8 becomes U+FFFD, ids without a token nothing.

        Args:
          continues_text: the ids follow other text, so that a first space counts.
        """
        stream = DetokenizerStream(
            self, skip_special_tokens=skip_special_tokens, continues_text=continues_text
        )
        pieces = [stream.feed(token_id) for token_id in ids]
        return "".join(pieces) + stream.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; b"" if there is no such token."""
        known = self._bytes_of.get(token_id)
        if known is None:
            is_id = 0 <= token_id < self.vocab_size
            token = self._backend.id_to_token(token_id) if is_id else None
            known = b"" if token is None else self._rules.apply(token)
            self._bytes_of[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether it is a control token, such as BOS, that is no part of the text."""
        return token_id in self._special_ids

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json`, a GGUF's vocabulary included."""
        self._backend.save(str(path))


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose 256 ids are the bytes of UTF-8."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(backend)


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    vocabulary, merges = (file.with_name(name) for name in VOCABULARY_FILES)
    try:
        if file.is_file():
            return tokenizers.Tokenizer.from_file(str(file))
        if vocabulary.is_file() and merges.is_file():
            model = models.BPE.from_file(str(vocabulary), str(merges))
            backend = tokenizers.Tokenizer(model)
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
            return backend
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"a file is damaged ({error}); download it again.") from error
    raise FileNotFoundError(
        f"there is no tokenizer at {file}; copy {TOKENIZER_FILE} (or "
        f"{' and '.join(VOCABULARY_FILES)}) of the model there, or give its GGUF file."
    )


def _read_settings(directory: Path) -> dict[str, Any]:
    """The fields on special tokens of all JSON files of a model; later ones win."""
    settings: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        file = directory / name
        if not file.is_file():
            continue
        fields = read_json(file)
        wanted = "bos_token", "eos_token", "eos_token_id", "eos_token_ids", "add_bos_token"
        settings |= {key: fields[key] for key in wanted if fields.get(key) is not None}
    return settings


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    """The id of a token given as text or as the JSON form of an `AddedToken`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    if backend.token_to_id(token) is not None:
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    return backend.token_to_id(token)


def _eos_ids(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> list[int]:
    """All ids that end a text: of the model's settings and of the tokenizer's own."""
    ids = [_token_id(backend, settings.get("eos_token"))]
    for name in ("eos_token_id", "eos_token_ids"):
        value = settings.get(name, [])
        ids += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(token_id for token_id in ids if token_id is not None))
