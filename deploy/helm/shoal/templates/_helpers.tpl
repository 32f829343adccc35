{{- define "shoal.labels" -}}
app.kubernetes.io/name: shoal
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The fields of a part's pod other than its containers: `root` is the chart's, `part` its values, `component` its label. */ -}}
{{- define "shoal.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .part.tolerations | default list }}
{{- if .part.gpus }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $context := . }}
{{- with .part.spreadOver }}
topologySpreadConstraints:
{{- range . }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "shoal.selector" $context | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* The number of a part's pods that may be evicted at once while machines are drained. */ -}}
{{- define "shoal.disruption" -}}
{{- $context := . }}
{{- with .part.maxUnavailable }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $context.name }}
  labels: {{- include "shoal.labels" $context.root | nindent 4 }}
spec:
  maxUnavailable: {{ . }}
  selector:
    matchLabels: {{- include "shoal.selector" $context | nindent 6 }}
{{- end }}
{{- end }}

{{- define "shoal.shut-in" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The prefix of all names of resources: 52 characters at most with the rest, because a StatefulSet adds eleven. */ -}}
{{- define "shoal.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* A map of settings as variables: leaseS or lease_s becomes PREFIX__LEASE_S. Values other than texts are
       written as JSON, because shoal reads lists and maps so, and large numbers would become 8.6e+09. */ -}}
{{- define "shoal.variables" -}}
{{- $prefix := .prefix -}}
{{- range $name, $value := omit .settings "hosts" }}
- name: {{ $prefix }}__{{ $name | snakecase | upper }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}

{{- /* The names under which a coordinator is reached: the service's, the ingress's, and those of its setting `hosts`. */ -}}
{{- define "shoal.hosts" -}}
{{- $name := printf "%s-coordinator" (include "shoal.name" .) -}}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) -}}
{{- $hosts = append $hosts (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- if .Values.coordinator.ingress.enabled -}}
{{- $hosts = append $hosts .Values.coordinator.ingress.host -}}
{{- end -}}
{{- concat $hosts (.Values.coordinator.settings.hosts | default list) | toJson -}}
{{- end }}

{{- /* The files with a coordinator's secrets. */ -}}
{{- define "shoal.secrets" -}}
{{- if .database.secret }}
- {name: SHOAL_COORDINATOR__DATABASE_URL_FILE, value: /run/secrets/database/url}
{{- end }}
{{- if .blobs.secret }}
- {name: SHOAL_COORDINATOR__BLOBS_KEY_ID_FILE, value: /run/secrets/blobs/id}
- {name: SHOAL_COORDINATOR__BLOBS_SECRET_FILE, value: /run/secrets/blobs/secret}
{{- end }}
{{- if .operatorToken.secret }}
- {name: SHOAL_COORDINATOR__OPERATOR_TOKEN_FILE, value: /run/secrets/operator/token}
{{- end }}
{{- end }}
