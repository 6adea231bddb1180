"""The page holds the whole history, needs nothing else, and its program reads it right."""

import json
import re
import shutil
import subprocess

import pytest

from paxkv.analysis.event_replay import replay
from paxkv.analysis.pool_page import page_data, write_page
from paxkv.analysis.pool_picture import STATE_COLOURS, colour_indices, shown_steps
from paxkv.events import Event, EventKind
from tests.event_streams import random_events, sample_events

# As much of a browser as the program needs to start, and to be asked afterwards.
BROWSER = """
const page = require("fs").readFileSync(process.argv[2], "utf8");
const script = id => page.split(`<script id="${id}"`)[1].split(">").slice(1).join(">")
  .split("</script>")[0];
const made = {}, handlers = {};
const images = [];
const fakeContext = {
  clearRect() {}, fillText() {}, save() {}, translate() {}, rotate() {}, restore() {},
  createImageData: (width, height) =>
    ({ width, height, data: new Uint8ClampedArray(4 * width * height) }),
  putImageData: image => images.push(image) };
const fake = id => made[id] ??= {
  textContent: id === "data" ? script("data") : "", value: "", clientWidth: 480,
  clientHeight: 248, style: {}, getContext: () => fakeContext, children: [],
  addEventListener: (name, act) => handlers[`${id} ${name}`] = act,
  getBoundingClientRect: () => ({ left: 0, top: 0 }),
  setPointerCapture() {}, createCaption() { return fake(id + ".caption"); },
  insertRow() { const row = { cells: [], insertCell() {
    const cell = {}; row.cells.push(cell); return cell; } };
    this.children.push(row); return row; },
  append(...more) { this.children.push(...more); },
  replaceChildren(...all) { this.children = all; } };
let count = 0;
globalThis.document = { getElementById: fake,
  createElement: () => fake(`made ${count++}`) };
globalThis.window = { addEventListener() {} };
globalThis.Option = function () {};
"""
QUESTIONS = """
const answers = data.groups.map((_, index) => {
  group = data.groups[index];
  const all = [];
  for (let block = 1; block < group.numBlocks; block++)
    for (let step = data.firstStep; step <= data.lastStep; step++)
      all.push(data.kinds[kindAt(block, step)]);
  return all;
});
group = data.groups[0];
const wheel = deltaY => handlers["canvas wheel"](
  { deltaY, clientX: 270, clientY: 106, preventDefault() {} });
const seen = { whole: { ...view } };
const drawn = images.at(-1), hex = value => value.toString(16).padStart(2, "0");
seen.grid = [1, 2, 3, 4].map(block => [0, 1, 2, 3, 4].map(step => {
  const x = (step + 0.5) * 80, y = (4.5 - block) * 50; // 400 x 200 px
  const at = 4 * (y * drawn.width + x);
  return "#" + [...drawn.data.slice(at, at + 3)].map(hex).join("");
}));
wheel(-1); seen.near = { ...view };
wheel(1); seen.back = { ...view };
seen.shared = describe(1, 2);
seen.colours = new Set(new Uint32Array(images.at(-1).data.buffer)).size;
handlers["canvas pointermove"]({ clientX: LEFT + 1, clientY: TOP + 1 });
seen.here = element("here").textContent;
handlers["request input"]({ target: { value: "8" } });
seen.pale = new Set(new Uint32Array(images.at(-1).data.buffer)).size;
seen.life = (element("life").children.at(-1)?.children ?? [])
  .map(row => row.cells.map(cell => cell.textContent));
handlers["request input"]({ target: { value: "99" } });
seen.nobody = element("life").textContent;
console.log(JSON.stringify({ answers, seen }));
"""


def run_page(path) -> dict:
    """What the page's program answers under node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node to run the page's program")
    program = re.search(r'<script id="program">(.*?)</script>', path.read_text(), re.DOTALL)
    assert program
    file = path.with_suffix(".cjs")
    file.write_text(BROWSER + program[1].replace('"use strict";', "") + QUESTIONS)
    done = subprocess.run(
        [node, str(file), str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def embedded(path) -> dict:
    found = re.search(r'type="application/json">(.*?)</script>', path.read_text())
    assert found
    return json.loads(found[1])


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "pool.html"
    events = sample_events()
    write_page(path, events, replay(events, (5,)), title="a run")
    return path


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|\bfetch\(|import\(", text)
    assert "__DATA__" not in text


def test_embedded_data_are_the_history(page):
    data = embedded(page)
    assert data["title"] == "a run"
    assert data["groups"][0]["numBlocks"] == 5
    assert data["kinds"][0] == [0, []]
    assert data["groups"][0]["runs"][1] == [0, 0, 1, 1, 3, 0]
    assert data["kinds"][1] == [2, [[7, 0]]]
    assert [life[0] for life in data["lives"]] == [7, 8]


def test_text_of_a_log_cannot_end_the_script(tmp_path):
    path = tmp_path / "pool.html"
    evil = "</script><script>alert(1)</script><!--"
    events = [Event(kind=EventKind.FINISH, step=1, now_s=0.0, request_id=1, detail=evil)]
    write_page(path, events, replay(events, (5,)), title=evil)
    assert path.read_text().count("</script>") == 2
    data = embedded(path)
    assert data["title"] == evil
    assert data["lives"][0][1][0][2] == f"finished: {evil}"


def test_unknown_colourings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="colour='heat'"):
        write_page(tmp_path / "x", [], replay([], (5,)), title="", colour="heat")


def test_program_reads_every_block_at_every_step(tmp_path):
    path = tmp_path / "pool.html"
    events, _ = random_events(4)
    history = replay(events, (17, 9))
    write_page(path, events, history, title="random", colour="owner")
    answers = run_page(path)["answers"]
    for group, found in zip(history.groups, answers, strict=True):
        expected = [
            [int(span.state), [[*owner] for owner in span.owners]]
            for spans in group.spans[1:]
            for step in range(history.first_step, history.last_step + 1)
            for span in [[s for s in spans if s.step <= step][-1]]
        ]
        assert found == expected


def test_program_zooms_and_tells_of_blocks_and_requests(page):
    seen = run_page(page)["seen"]
    assert seen["whole"] == {"x0": 0, "x1": 5, "y0": 1, "y1": 5}
    assert seen["near"] == pytest.approx({"x0": 0.5, "x1": 4.5, "y0": 1.4, "y1": 4.6})
    assert seen["back"] == pytest.approx(seen["whole"])
    assert seen["colours"] == 4  # of all states
    history = replay(sample_events(), (5,))
    indices = colour_indices(history.groups[0], shown_steps(history), "state")
    colours = [colour.lower() for colour in STATE_COLOURS.values()]
    assert seen["grid"] == [[colours[index] for index in row] for row in indices]
    assert seen["pale"] > 4  # request 8's are as before, the others paler
    assert seen["shared"] == "step 2, block 1: shared, of requests 7, 8"
    assert seen["here"] == "step 0, block 4: free"
    assert seen["life"][0] == ["step", "time (s)", "what"]
    assert seen["life"][-1][2] == "admitted, 0 of its tokens found in the cache"
    assert seen["nobody"] == "The log has no request 99."


def test_equal_kinds_are_stored_once():
    events, _ = random_events(4)
    kinds = page_data(events, replay(events, (17, 9)))["kinds"]
    assert len(kinds) == len(set(kinds))
