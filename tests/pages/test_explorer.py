"""The explorer in a real browser: every number shown is the accountant's, at every click."""

import tomllib
from pathlib import Path

import pytest

import sottovoce as sv
from sottovoce._format import fixed
from sottovoce.planfile.read import plan_from_settings
from sottovoce.planfile.schema import check_plan_file
from sottovoce.report.explorer.model import ExplorerModel, ExplorerSettings
from sottovoce.report.explorer.page import ExplorerServer, offline_page

from .conftest import violations

pytestmark = pytest.mark.pages
DELTA = 1e-5


@pytest.fixture(scope="module")
def server():
    with ExplorerServer(ExplorerModel(ExplorerSettings(graph="florentine", rounds=5))) as started:
        yield started


def opened(page, server):
    page.goto(server.address)
    page.wait_for_selector("body[data-course]")
    return page


def settled(page, act):
    """Do something, and wait until the page has answered."""
    before = page.get_attribute("body", "data-ready")
    act()
    page.wait_for_selector(f"body:not([data-ready='{before}'])")


def rows(page):
    """Return the table as text, row by row: name, words and five numbers."""
    return page.eval_on_selector_all(
        "#nodes tbody tr",
        "rows => rows.map(r => [r.cells[0].innerText, ...[...r.cells].slice(2).map(c => c.innerText)])",
    )


def expected(plan, network, observers, rounds):
    """Recompute what the table must show, from the plan and the low-level functions, user by user."""
    formula = sv.privacy.published_loss(network, rounds=rounds)[:, observers].sum(axis=1)
    first, *others = observers
    shares = sv.privacy.exact_loss(network, rounds=rounds, observer=first, colluders=others)
    local = fixed(plan.privacy("local").epsilon(DELTA), "epsilon")
    table = []
    for u in range(network.n):
        name = str(network.node_name(u))
        if u in observers:
            table.append([name, "looks", "–", "–", "–", "–", "–"])
            continue
        stated = plan.privacy("colluders", colluders=observers, user=u)
        mu = formula[u] ** 0.5 / plan.releases(0)[0].noise_to_sensitivity
        published = [fixed(formula[u]), fixed(sv.privacy.gaussian_epsilon(mu, DELTA))]
        numbers = [fixed(shares[u], "share"), fixed(stated.epsilon(DELTA), "epsilon"), *published, local]
        table.append([name, sv.accounting.wording.learned(shares[u], stated.best_guess), *numbers])
    return table


def florentine(rounds):
    network = sv.graphs.florentine()
    gossip = sv.protocols.Gossip(network, rounds)
    return sv.PrivateAveraging(gossip, noise_std=1.0, radius=0.5), network  # multiplier 2, as the page has it


def place_of(page, node):
    """Return where on the screen a node is drawn, asked of Bokeh itself."""
    return page.evaluate(
        """node => {
          const docs = Bokeh.documents;
          const plot = docs.map(d => d.get_model_by_name("plot")).find(m => m);
          const source = docs.map(d => d.get_model_by_name("nodes")).find(m => m);
          const view = Object.values(Bokeh.index.roots ?? Bokeh.index).flat().concat([...Bokeh.index])
            .find(v => v && v.model === plot);
          const box = view.canvas_view.el.getBoundingClientRect();
          const frame = view.frame;
          const {x, y} = source.data;
          return [box.x + frame.x_scale.compute(x[node]), box.y + frame.y_scale.compute(y[node])];
        }""",
        node,
    )


def test_every_node_of_the_florentine_graph_by_mouse(page, server):
    opened(page, server)
    plan, network = florentine(5)
    for node in range(network.n):
        page.wait_for_timeout(400)  # two clicks in a row are a double click
        x, y = place_of(page, node)
        if [node] != [int(v) for v in page.get_attribute("body", "data-observers").split(",")]:
            settled(page, lambda x=x, y=y: page.mouse.click(x, y))
        assert page.get_attribute("body", "data-observers") == str(node)
        assert rows(page) == expected(plan, network, [node], 5)
    assert page.complaints == []


def test_every_node_by_keyboard(page, server):
    opened(page, server)
    plan, network = florentine(5)
    page.locator("#nodes button").first.focus()
    for node in range(network.n):
        if node:  # two stops a row: the name, and the tick
            page.keyboard.press("Tab")
            page.keyboard.press("Tab")
        settled(page, lambda: page.keyboard.press("Enter"))
        assert rows(page) == expected(plan, network, [node], 5)
        assert str(network.node_name(node)) in page.inner_text("#summary")


def test_colluders_by_shift_click_and_by_tick(page, server):
    opened(page, server)
    plan, network = florentine(5)
    settled(page, lambda: page.mouse.click(*place_of(page, 2)))
    page.wait_for_timeout(400)
    page.keyboard.down("Shift")
    settled(page, lambda: page.mouse.click(*place_of(page, 9)))
    page.keyboard.up("Shift")
    assert page.get_attribute("body", "data-observers") == "2,9"
    assert rows(page) == expected(plan, network, [2, 9], 5)
    settled(page, lambda: page.locator("#nodes input").nth(4).check())
    assert rows(page) == expected(plan, network, [2, 4, 9], 5)
    settled(page, lambda: page.locator("#nodes input").nth(9).uncheck())
    assert rows(page) == expected(plan, network, [2, 4], 5)
    assert page.complaints == []


def test_what_can_be_computed_is_what_the_attack_computes(page, server):
    opened(page, server)
    _, network = florentine(5)
    settled(page, lambda: page.get_by_role("button", name="Medici", exact=True).click())
    medici = network.node_names.index("Medici")
    sentence = page.inner_text("#computes")
    known = sv.attacks.reconstruct_gossip(network, attackers=medici, rounds=5)
    assert known
    for node in range(network.n):
        named = sentence.split(", and ")[0]
        assert (str(network.node_name(node)) in named) == (node in known or node == medici)


def test_the_slider_of_rounds(page, server):
    opened(page, server)
    settled(page, lambda: page.get_by_role("button", name="Ginori", exact=True).click())
    network = sv.graphs.florentine()
    ginori = network.node_names.index("Ginori")
    for rounds in (1, 3, 8):

        def move(rounds=rounds):
            page.eval_on_selector(
                "#rounds", "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(rounds)
            )

        settled(page, move)
        page.wait_for_selector(f"body[data-rounds='{rounds}']")
        assert rows(page) == expected(florentine(rounds)[0], network, [ginori], rounds)
    page.locator("#rounds").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("body[data-rounds='7']")
    assert page.complaints == []


def test_the_matrix(page, server):
    opened(page, server)
    page.locator("#matrix-details summary").click()
    page.wait_for_selector("#matrix td")
    shown = page.eval_on_selector_all(
        "#matrix tbody tr", "rows => rows.map(r => [...r.cells].slice(1).map(c => c.innerText))"
    )
    exact = sv.privacy.exact_loss(sv.graphs.florentine(), rounds=5)
    for u in range(15):
        assert shown[u] == ["–" if u == v else fixed(exact[u, v], "share") for v in range(15)]
    assert violations(page) == []


def test_settings_and_their_refusals(page, server):
    opened(page, server)
    form = page.locator("#setting")
    form.locator("[name=protocol]").select_option("masked")
    form.locator("[name=partners]").fill("4")
    form.locator("[name=tolerate]").fill("2")
    form.locator("[name=noise]").fill("8")
    settled(page, lambda: form.get_by_role("button", name="Apply").click())
    network = sv.graphs.florentine()
    plan = sv.PrivateAveraging("masked:partners=4:tolerate=2", network=network, noise_std=4.0, radius=0.5)
    page.wait_for_selector("dd:has-text('pairs share keys')")
    assert rows(page)[1][3] == fixed(plan.privacy("pairwise", observer=0, user=1).epsilon(DELTA), "epsilon")
    form.locator("[name=graph]").fill("rng:8")
    settled(page, lambda: form.get_by_role("button", name="Apply").click())
    assert "did you mean 'ring'?" in page.inner_text("#alert")
    form.locator("[name=graph]").fill("file:/etc/passwd")
    settled(page, lambda: form.get_by_role("button", name="Apply").click())
    assert "opens no files" in page.inner_text("#alert")
    form.locator("[name=graph]").fill("hypercube:3")
    form.locator("[name=protocol]").select_option("exchange")
    settled(page, lambda: form.get_by_role("button", name="Apply").click())
    page.wait_for_selector("#nodes tbody tr:nth-child(8)")
    page.wait_for_selector("dd:has-text('averaging over exchange')")
    assert page.locator("#nodes tbody tr").count() == 8
    assert page.inner_text("#alert") == ""
    assert page.complaints == []


def test_a_graph_is_drawn_and_its_plan_prices_the_same(page, server, tmp_path):
    opened(page, server)
    form = page.locator("#setting")
    form.locator("[name=graph]").fill("path:3")
    settled(page, lambda: form.get_by_role("button", name="Apply").click())
    page.wait_for_selector("dd:has-text('path:3')")
    settled(page, lambda: page.get_by_role("button", name="node 2", exact=True).click())
    settled(page, lambda: page.locator("#add").click())  # node 3, joined to node 2
    page.wait_for_selector("#nodes tbody tr:nth-child(4)")
    settled(page, lambda: page.get_by_role("button", name="node 0", exact=True).click())
    settled(page, lambda: page.locator("#nodes input").nth(3).check())
    settled(page, lambda: page.locator("#join").click())  # closes the ring
    page.wait_for_selector("dd:has-text('4 participants, 4 links')")
    page.locator("#draw").click()
    box = page.locator("#graph").bounding_box()
    settled(page, lambda: page.mouse.click(box["x"] + 14, box["y"] + 14))  # node 4, joined to 0 and 3
    page.wait_for_selector("#nodes tbody tr:nth-child(5)")
    page.wait_for_selector("dd:has-text('5 participants, 6 links')")
    page.locator("#draw").click()
    settled(page, lambda: page.get_by_role("button", name="node 1", exact=True).click())
    edges = "edges:0-1,1-2,2-3,0-3,0-4,3-4"
    shown = rows(page)
    with page.expect_download() as saved:
        page.locator("#save-plan").click()
    saved.value.save_as(tmp_path / "plan.toml")
    text = (tmp_path / "plan.toml").read_text()
    plan = plan_from_settings(check_plan_file(tomllib.loads(text), "plan.toml"), tmp_path, "plan.toml").plan
    assert sv.graphs.parse(edges).edges.tolist() == plan.protocol.network.edges.tolist()
    for u in (0, 2, 3, 4):
        assert shown[u][3] == fixed(plan.privacy("pairwise", observer=1, user=u).epsilon(DELTA), "epsilon")
    settled(page, lambda: page.get_by_role("button", name="node 4", exact=True).click())
    settled(page, lambda: page.locator("#remove").click())
    page.wait_for_selector("dd:has-text('4 participants, 4 links')")
    settled(page, lambda: page.get_by_role("button", name="node 0", exact=True).click())
    settled(page, lambda: page.locator("#nodes input").nth(1).check())
    settled(page, lambda: page.locator("#join").click())  # parts them: a path again
    page.wait_for_selector("dd:has-text('4 participants, 3 links')")
    settled(page, lambda: page.get_by_role("button", name="node 1", exact=True).click())
    settled(page, lambda: page.locator("#nodes input").nth(2).check())
    settled(page, lambda: page.locator("#join").click())
    assert "onnected" in page.inner_text("#alert")  # two halves cannot average; the graph stays
    assert page.locator("#nodes tbody tr").count() == 4
    assert page.complaints == []


def test_pictures_are_saved(page, server, tmp_path):
    opened(page, server)
    for kind, magic in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with page.expect_download() as saved:
            page.locator(f"#save-{kind}").click()
        saved.value.save_as(tmp_path / f"network.{kind}")
        raw = (tmp_path / f"network.{kind}").read_bytes()
        assert raw.startswith(magic)
        assert len(raw) > 2000
    assert "Medici" in (tmp_path / "network.svg").read_text()
    assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_in_the_way_of_a_reader(page, server, scheme, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    opened(page, server)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#summary").bounding_box()["width"] > 250
    assert page.complaints == []
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "data:")) for url in page.requested)


def test_the_offline_file_with_the_network_off(page, tmp_path):
    model = ExplorerModel(ExplorerSettings(graph="ring:6", rounds=3))
    (tmp_path / "page.html").write_text(offline_page(model), encoding="utf-8")
    page.context.set_offline(True)
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("body[data-course]")
    network = sv.graphs.ring(6)
    for rounds in (1, 2, 3):
        page.eval_on_selector(
            "#rounds", "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(rounds)
        )
        page.wait_for_selector(f"body[data-rounds='{rounds}']")
        gossip = sv.protocols.Gossip(network, rounds)
        plan = sv.PrivateAveraging(gossip, noise_std=1.0, radius=0.5)
        for first, second in ((0, 1), (2, 5)):
            settled(page, lambda first=first: page.locator("#nodes button").nth(first).click())
            wanted = expected(plan, network, [first], rounds)
            assert [row[1:] for row in rows(page)] == [row[1:] for row in wanted]
            settled(page, lambda second=second: page.locator("#nodes input").nth(second).check())
            wanted = expected(plan, network, [first, second], rounds)
            assert [row[1:] for row in rows(page)] == [row[1:] for row in wanted]
    settled(page, lambda: page.locator("#nodes input").nth(3).check())
    assert "larger coalitions" in page.inner_text("#alert")
    with page.expect_download() as saved:
        page.locator("#save-plan").click()
    assert 'graph = "ring:6"' in Path(saved.value.path()).read_text()
    assert violations(page) == []
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in page.requested)
