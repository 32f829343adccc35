import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { revokeToken } from "../api/commands";
import { queryKeys } from "../api/queryKeys";
import type { TokenInfo } from "../api/types";
import { UNKNOWN } from "../format/number";
import { escapeHidden } from "../format/text";
import { ErrorMessage } from "../ui/ErrorMessage";
import { hiddenHeading, Table, type Column } from "../ui/Table";
import { Timestamp } from "../ui/Timestamp";
import { tokensQuery } from "./queries";

/** Table of the tokens that have not expired, with buttons to revoke them. */
export function TokensTable() {
  const client = useQueryClient();
  const { data: tokens, error } = useQuery(tokensQuery);
  const { mutate, isPending, error: revokeError } = useMutation({
    mutationFn: revokeToken,
    onSettled: () => client.invalidateQueries({ queryKey: queryKeys.tokens }),
  });
  const columns = useMemo(() => buildColumns(isPending, mutate), [isPending, mutate]);
  const failure = error ?? revokeError;
  if (failure !== null) return <ErrorMessage error={failure} />;
  if (tokens === undefined || tokens.length === 0) return null;
  return (
    <section aria-labelledby="tokens-title">
      <header className="section-head">
        <h2 id="tokens-title">Valid tokens</h2>
      </header>
      <div className="panel">
        <Table
          className="table-wide"
          columns={columns}
          rows={tokens}
          rowKey={({ id }) => id}
          scroll={{ label: "Valid tokens, newest first" }}
          testId="tokens"
        />
      </div>
    </section>
  );
}

function buildColumns(isBusy: boolean, revoke: (id: string) => void): Column<TokenInfo>[] {
  return [
    {
      title: "Token",
      cell: ({ id, name }) => (
        <>
          <code>{id}…</code>
          {name !== null && (
            <>
              {" for "}
              <bdi>{escapeHidden(name)}</bdi>
            </>
          )}
        </>
      ),
    },
    { title: "Role", cell: ({ role }) => role },
    { title: "Uses left", cell: ({ role, uses_left, uses }) => (role === "node" ? `${uses_left} of ${uses}` : UNKNOWN) },
    { title: "Expires", cell: ({ expires_at }) => <Timestamp at={expires_at} /> },
    {
      title: "Revoke",
      heading: hiddenHeading("Revoke"),
      cell: ({ id }) => (
        <button type="button" className="button" disabled={isBusy} onClick={() => revoke(id)} aria-label={`Revoke ${id}`}>
          Revoke
        </button>
      ),
    },
  ];
}
