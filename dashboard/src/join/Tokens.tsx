import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { keys, tokensQuery } from "../api/queries";
import { revokeToken } from "../api/commands";
import type { TokenRow } from "../api/types";
import { visible } from "../format/text";
import { clock } from "../format/time";
import { useNow } from "../live/useNow";
import { Problem } from "../ui/Problem";

/** Tokens that were made and have not expired, each with a button that revokes it. */
export function Tokens() {
  const client = useQueryClient();
  const { data: tokens, error } = useQuery(tokensQuery);
  const revoked = useMutation({
    mutationFn: revokeToken,
    onSettled: () => client.invalidateQueries({ queryKey: keys.tokens }),
  });
  const failed = error ?? revoked.error;
  if (failed !== null) return <Problem error={failed} />;
  if (tokens === undefined || tokens.length === 0) return null;
  return (
    <section aria-labelledby="tokens-title">
      <header className="section-head">
        <h2 id="tokens-title">Valid tokens</h2>
      </header>
      <div className="panel table-scroll" tabIndex={0} role="region" aria-label="Valid tokens, newest first">
        <table className="data-table wide" data-testid="tokens">
          <thead>
            <tr>
              <th scope="col">Begins with</th>
              <th scope="col">Role</th>
              <th scope="col">Uses left</th>
              <th scope="col">Expires</th>
              <th scope="col">
                <span className="visually-hidden">Revoke</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {tokens.map((token) => (
              <Row key={token.id} token={token} isBusy={revoked.isPending} revoke={() => revoked.mutate(token.id)} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Row({ token, isBusy, revoke }: { token: TokenRow; isBusy: boolean; revoke: () => void }) {
  const now = useNow();
  return (
    <tr>
      <td>
        <code>{token.id}</code>
        {token.name !== null && (
          <>
            {" for "}
            <bdi>{visible(token.name)}</bdi>
          </>
        )}
      </td>
      <td>{token.role}</td>
      <td>{token.role === "node" ? `${token.uses_left} of ${token.uses}` : "–"}</td>
      <td>{clock(Date.parse(token.expires_at), now)}</td>
      <td>
        <button type="button" className="button" disabled={isBusy} onClick={revoke} aria-label={`Revoke ${token.id}`}>
          Revoke
        </button>
      </td>
    </tr>
  );
}
