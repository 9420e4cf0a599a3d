"""Commands about the store itself: init; and the schemas that come with the package."""

from __future__ import annotations

import click

from oarbank_cas.cli.session import Session, pass_session


@click.command()
@click.option(
    "--session-s", type=int, metavar="N", help="Seconds that a writer may rely on what it saw.  [default: 21600]"
)
@click.option(
    "--grace-s", type=int, metavar="N", help="Seconds before gc looks at an unreferenced blob.  [default: 86400]"
)
@click.option(
    "--slack-s", type=int, metavar="N", help="Seconds by which clocks and listings may be off.  [default: 300]"
)
@pass_session
def init(session: Session, session_s: int | None, grace_s: int | None, slack_s: int | None) -> None:
    """Make a store. Again is a no-op.

    \b
    Example:
      oarbank-cas --store /data/cas init
    """
    from oarbank_cas.store import Store

    url = session.url
    store, made = Store.init(url, session_s=session_s, grace_s=grace_s, slack_s=slack_s, s3=session.s3_for(url))
    with store:
        said = store.descriptor
        if session.as_json:
            session.document(
                {
                    "store": store.backend.where,
                    "id": said.id,
                    "made": made,
                    "session_s": said.session_s,
                    "grace_s": said.grace_s,
                    "slack_s": said.slack_s,
                }
            )
        else:
            session.line(f"{'made' if made else 'there already'}: {store.backend.where} (id {said.id})")


@click.command()
@click.argument("name", required=False)
@pass_session
def schema(session: Session, name: str | None) -> None:
    """Print one of the JSON Schemas of the contract, or the list of their names.

    \b
    Example:
      oarbank-cas schema result-envelope-1
    """
    from oarbank_cas.contracts import schemas

    if name is not None:
        click.echo(schemas.shipped(name), nl=False)
    elif session.as_json:
        session.document({"schemas": list(schemas.NAMES)})
    else:
        click.echo("\n".join(schemas.NAMES))
