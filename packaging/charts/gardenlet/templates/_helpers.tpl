{{/* Labels that select the Pods. */}}
{{- define "gardenlet.selector" -}}
app: gardener
role: gardenlet
{{- end }}

{{/* Labels of every object. */}}
{{- define "gardenlet.labels" -}}
{{ include "gardenlet.selector" . }}
app.kubernetes.io/name: gardenlet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the ClusterRole and its binding. */}}
{{- define "gardenlet.role" -}}
gardener.cloud:system:gardenlet{{ if .Values.isolateClusterResources }}:{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "gardenlet.image" -}}
{{- with .Values.image -}}
{{- $tag := default $.Chart.AppVersion .tag -}}
{{- if .ref }}{{ .ref }}{{ else if hasPrefix "sha256:" $tag }}{{ .repository }}@{{ $tag }}{{ else }}{{ .repository }}:{{ $tag }}{{ end }}
{{- end -}}
{{- end }}

{{/*
A kubeconfig in the configuration is a path if it is a path, and else the text of one, for which there is a Secret.
Empty for a path. Takes the connection.
*/}}
{{- define "gardenlet.kubeconfig.text" -}}
{{- $text := (. | default dict).kubeconfig | default "" -}}
{{- if not (hasPrefix "/" $text) }}{{ $text }}{{ end -}}
{{- end }}

{{/* The Secret with the bootstrap kubeconfig as YAML; empty where none is configured. Values for Gardener's chart may say secretRef. */}}
{{- define "gardenlet.bootstrap" -}}
{{- with (.Values.config.gardenClientConnection | default dict).bootstrapKubeconfig -}}
{{- $from := .secretRef | default . -}}
name: {{ $from.name | default "gardenlet-kubeconfig-bootstrap" }}
namespace: {{ $from.namespace | default $.Release.Namespace }}
{{- end -}}
{{- end }}

{{/* The configuration file: `config` as it stands, but for the texts of kubeconfigs, which are in Secrets. */}}
{{- define "gardenlet.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "apiVersion" "gardenlet.config.gardener.cloud/v1alpha1" -}}
{{- $_ := set $config "kind" "GardenletConfiguration" -}}
{{- if not $config.nodeToleration }}{{ with .Values.nodeToleration }}{{ $_ := set $config "nodeToleration" . }}{{ end }}{{ end -}}
{{- $garden := $config.gardenClientConnection | default dict -}}
{{- if include "gardenlet.kubeconfig.text" $garden }}{{ $_ := set $garden "kubeconfig" "/etc/gardenlet/kubeconfig-garden/kubeconfig" }}{{ end -}}
{{- if $garden.bootstrapKubeconfig }}{{ $_ := set $garden "bootstrapKubeconfig" (include "gardenlet.bootstrap" . | fromYaml) }}{{ end -}}
{{- $seed := $config.seedClientConnection | default dict -}}
{{- if include "gardenlet.kubeconfig.text" $seed }}{{ $_ := set $seed "kubeconfig" "/etc/gardenlet/kubeconfig-seed/kubeconfig" }}{{ end -}}
{{- toYaml $config -}}
{{- end }}

{{/* Name of an object that never changes: a prefix and the beginning of the content's digest. Takes prefix and content. */}}
{{- define "gardenlet.immutable" -}}
{{ index . 0 }}-{{ index . 1 | sha256sum | trunc 8 }}
{{- end }}

{{/*
What the Pods mount: one entry for each object, with kind, name, the content's key and text, mount path, volume and environment variable.
*/}}
{{- define "gardenlet.files" -}}
{{- $files := list (dict "kind" "ConfigMap" "prefix" "gardenlet-configmap" "volume" "gardenlet-config" "key" "config.yaml" "path" "/etc/gardenlet/config" "text" (include "gardenlet.config" .)) -}}
{{- with include "gardenlet.kubeconfig.text" .Values.config.gardenClientConnection -}}
{{- $files = append $files (dict "kind" "Secret" "prefix" "gardenlet-kubeconfig-garden" "volume" "kubeconfig-garden" "key" "kubeconfig" "path" "/etc/gardenlet/kubeconfig-garden" "text" .) -}}
{{- end -}}
{{- with include "gardenlet.kubeconfig.text" .Values.config.seedClientConnection -}}
{{- $files = append $files (dict "kind" "Secret" "prefix" "gardenlet-kubeconfig-seed" "volume" "kubeconfig-seed" "key" "kubeconfig" "path" "/etc/gardenlet/kubeconfig-seed" "text" .) -}}
{{- end -}}
{{- with .Values.imageVectorOverwrite -}}
{{- $files = append $files (dict "kind" "ConfigMap" "prefix" "gardenlet-imagevector-overwrite" "volume" "imagevector-overwrite" "key" "images_overwrite.yaml" "path" "/imagevector_overwrite" "env" "IMAGEVECTOR_OVERWRITE" "text" .) -}}
{{- end -}}
{{- with .Values.componentImageVectorOverwrites -}}
{{- $files = append $files (dict "kind" "ConfigMap" "prefix" "gardenlet-imagevector-overwrite-components" "volume" "imagevector-overwrite-components" "key" "components.yaml" "path" "/imagevector_overwrite_components" "env" "IMAGEVECTOR_OVERWRITE_COMPONENTS" "text" .) -}}
{{- end -}}
{{- range $files }}{{ $_ := set . "name" (include "gardenlet.immutable" (list .prefix .text)) }}{{ end -}}
{{- toYaml (dict "files" $files) -}}
{{- end }}

{{/* Annotations by which the garbage collector of Gardener's resource manager knows what is still in use. */}}
{{- define "gardenlet.references" -}}
{{- range (include "gardenlet.files" . | fromYaml).files }}
reference.resources.gardener.cloud/{{ .kind | lower }}-{{ .name | sha256sum | trunc 8 }}: {{ .name }}
{{- end }}
{{- end }}

{{/* The lease by which the Pods elect one of them, as YAML. */}}
{{- define "gardenlet.lease" -}}
{{- $election := .Values.config.leaderElection | default dict -}}
name: {{ $election.resourceName | default "gardenlet-leader-election" }}
namespace: {{ $election.resourceNamespace | default "garden" }}
{{- end }}

{{- define "gardenlet.port.health" -}}
{{ (((.Values.config.server | default dict).healthProbes | default dict).port | default 2728) | int }}
{{- end }}

{{- define "gardenlet.port.metrics" -}}
{{ (((.Values.config.server | default dict).metrics | default dict).port | default 2729) | int }}
{{- end }}

{{/* A role's binding to the ServiceAccount. Takes the root, the kind of the role, its name, and the namespace (empty for the cluster). */}}
{{- define "gardenlet.binding" -}}
{{- $root := index . 0 -}}
{{- $namespace := index . 3 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ index . 1 }}Binding
metadata:
  name: {{ index . 2 }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "gardenlet.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ $root.Values.serviceAccountName }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
