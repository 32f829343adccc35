import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { signIn } from "../api/commands";
import { ErrorMessage } from "../ui/ErrorMessage";
import { setSignInRequired } from "../api/sessionState";

interface Props {
  onDone?: () => void;
  /** Other buttons. */
  others?: ReactNode;
}

export function SignInForm({ onDone, others }: Props) {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const field = useId();
  const entry = useMutation({
    mutationFn: () => signIn(token.trim()),
    onSuccess: async () => {
      setSignInRequired(false);
      onDone?.(); // at once, because refetching may take seconds, and the dialog blocks the page
      await client.invalidateQueries();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    entry.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <label htmlFor={field}>Token</label>
      <input
        id={field}
        name="token"
        type="password"
        autoComplete="off"
        spellCheck={false}
        placeholder="sho_…"
        required
        autoFocus
        value={token}
        onChange={(event) => setToken(event.target.value)}
      />
      <p className="hint">
        The operators’ token is in <code>operator.token</code> in the coordinator’s data folder;{" "}
        <code>shoal token create --role operator</code> creates another. The browser stores a session, not the token.
      </p>
      {entry.error && <ErrorMessage error={entry.error} />}
      <div className="dialog-actions">
        {others}
        <button type="submit" className="button primary" disabled={entry.isPending}>
          Sign in
        </button>
      </div>
    </form>
  );
}
