"""The RabbitMQ node and the PostgreSQL server that tests share.

There is one of each for each pytest process, started when first asked for.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.broker import BrokerNode, VirtualHost
from support.broker import why_missing as why_broker_missing
from support.pki import make_pki
from support.pki import why_missing as why_pki_missing
from support.postgres import PostgresNode
from support.postgres import why_missing as why_postgres_missing

# How long an example takes depends on what else the machine does. Each run draws other examples, so
# that few in each are many in a week.
settings.register_profile("spica", deadline=None, max_examples=40)
settings.load_profile("spica")


def pytest_configure(config: pytest.Config) -> None:
    """What the engine has answered to other code is forgotten, once for all processes."""
    # Else each of the hundreds of processes that tests start would compile all its modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput"):
        shutil.rmtree(_user_cache(config) / "spica-async" / "answers", ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage is looked for among thousands of tests: a fifth of the time to collect them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _user_cache_of_tests(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Nothing that is tested reads or writes the cache or the state of who tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_user_cache(pytestconfig)))
        # A daemon that was killed has left its token, and another may come to its port one day.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # What other tests have measured is no news for this one.
        patch.setenv("SPICA_NO_CACHE", "1")
        yield


def _user_cache(config: pytest.Config) -> Path:
    return config.cache.mkdir("user")


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerNode]:
    """A node to stop, kill and choke at will; for a sound one, ask for `broker_vhost` too."""
    _need(why_broker_missing())
    with BrokerNode() as node:
        yield node


@pytest.fixture(scope="session")
def _postgres_node() -> Iterator[PostgresNode]:
    _need(why_postgres_missing())
    with PostgresNode() as node:
        yield node


@pytest.fixture
def postgres(_postgres_node: PostgresNode) -> PostgresNode:
    """A running server to stop, kill and freeze, whatever the test before did to it."""
    _postgres_node.recover()
    return _postgres_node


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys and certificates: see `make_pki`."""
    _need(why_pki_missing())
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def broker_vhost(broker: BrokerNode) -> Iterator[VirtualHost]:
    """A fresh virtual host on a running node, whatever the test before left behind."""
    broker.recover()
    name = f"test-{secrets.token_hex(4)}"
    broker.add_vhost(name)
    yield VirtualHost(broker, name, broker.url(vhost=name))
    if broker.running:
        broker.delete_vhost(name)


def _need(missing: str | None) -> None:
    if missing is not None and os.environ.get("CI") == "true":
        pytest.fail(missing)
    if missing is not None:
        pytest.skip(missing)
