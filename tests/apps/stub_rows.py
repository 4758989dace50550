"""The part of the stub API that shows and deletes the rows of files."""

import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse

Row = dict[str, Any]


@dataclass
class StubRows:
    """The rows of each file, and what the statistics of files list."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    first_line: int = 1
    """The line of the first row: 2 in a table."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    lengths: dict[str, Any] | None = None
    num_running: int = 0
    """How often the statistics are still running."""
    max_scanned: int = 10_000
    """Rows that one search reads."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    in_use: set[str] = field(default_factory=set)


def find_known(rows: list[Row], training: str) -> bool:
    """Return whether the columns of rows are known, or mapped by settings."""
    columns = json.loads(training).get("columns", {})
    return {"prompt", "completion"} <= {*(rows[0] if rows else ()), *columns}


def make_finding(number: int, line: int, reason: str, content: str) -> dict[str, Any]:
    found = {"id": str(number), "object": "file.fault", "number": number, "line": line}
    return {**found, "reason": reason, "content": content, "first_number": None}


def add_row_routes(app: FastAPI, stub: StubRows, files: list[dict[str, Any]]) -> None:
    @app.get("/v1/files/{file_id}/rows", response_model=None)
    def list_rows(file_id: str, limit: int = 20, after: str = "0-0-0", search: str = "") -> Any:
        stub.asked.append({"file": file_id, "after": after, "search": search})
        rows = stub.rows.get(file_id, [])
        start = int(after.partition("-")[0])
        found: list[dict[str, Any]] = []
        last = start
        for number, row in enumerate(rows[start : start + stub.max_scanned], start + 1):
            if len(found) == limit:
                break
            last = number
            if search.lower() in " ".join(map(str, row.values())).lower():
                found.append(_describe(number, number + stub.first_line - 1, row))
        return {
            "object": "list",
            "data": found,
            "has_more": last < len(rows),
            "next_after": f"{last}-{last}-0",
            "columns": list(rows[0]) if rows else [],
            "unit": "line",
        }

    @app.get("/v1/files/{file_id}/statistics")
    def show_statistics(file_id: str, model: str, training: str = "{}") -> dict[str, Any]:
        stub.asked.append({"file": file_id, "model": model, "training": json.loads(training)})
        if stub.num_running:
            stub.num_running -= 1
            return {"object": "file.statistics", "status": "running", "model": model}
        return {
            "object": "file.statistics",
            "status": "completed",
            "model": model,
            "max_length": 64,
            "num_rows": len(stub.rows.get(file_id, [])),
            "num_faulty_rows": len(stub.faults),
            "num_duplicate_rows": len(stub.duplicates),
            "num_compared_rows": len(stub.rows.get(file_id, [])),
            "lengths": stub.lengths,
        }

    @app.get("/v1/files/{file_id}/faults", response_model=None)
    def list_faults(file_id: str, format: str = "json") -> Any:  # noqa: A002 - the API's
        return _list(stub.faults, format)

    @app.get("/v1/files/{file_id}/duplicates", response_model=None)
    def list_duplicates(file_id: str, format: str = "json") -> Any:  # noqa: A002 - as above
        return _list(stub.duplicates, format)

    @app.delete("/v1/files/{file_id}", response_model=None)
    def delete_file(file_id: str) -> Any:
        if file_id in stub.in_use:
            message = f"job 'ftjob-1' still needs file {file_id!r}"
            error = {"message": message, "type": "invalid_request_error", "code": "in_use"}
            return JSONResponse({"error": {**error, "param": None}}, 409)
        files[:] = [file for file in files if file["id"] != file_id]
        return {"id": file_id, "object": "file", "deleted": True}


def _list(found: list[dict[str, Any]], shown_as: str) -> Any:
    if shown_as == "csv":
        lines = [f"{one['number']},{one['line']},{one['reason']}" for one in found]
        return PlainTextResponse("\n".join(["number,line,reason", *lines]))
    return {"object": "list", "data": found, "has_more": False}


def _describe(number: int, line: int, row: Row) -> dict[str, Any]:
    values = [
        {"name": name, "kind": "column", "text": str(text)[:4000], "num_characters": len(str(text))}
        for name, text in row.items()
    ]
    head = {"id": f"{number}-{line}-0", "object": "file.row", "number": number, "line": line}
    return {**head, "values": values, "num_values": len(values), "fault": None}
